"""The classes that adapters are inferred for: how they are built."""

import pytest
from torch import nn

from goldformer.adapters.inference.target import PROBE, Construction, Made, read_target


class Wide(nn.Module):
    def __init__(self, d_model, d_ff=8192):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(d_ff, d_ff) for _ in range(1000))

    def forward(self, x):
        return x


class Block(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx, self.maps = layer_idx, nn.Linear(config["d_model"], config["d_ff"])

    def forward(self, x):
        return self.maps(x)


def test_a_module_that_is_too_large_is_refused_before_it_is_filled():
    with pytest.raises(ValueError, match="more than 10,000,000 parameters: give it arguments, or smaller defaults"):
        read_target(Wide).build(Construction({"d_model": "width"}), PROBE)
    # The next module is counted by itself.
    small = read_target(Wide).build(Construction({"d_model": "width", "d_ff": 1}), PROBE)
    assert len(small.maps) == 1000


def test_a_config_may_stand_next_to_the_number_of_a_layer():
    target = read_target(Block)
    first = next(target.list_constructions(["width", "inner"]))
    config = Made(dict, {"d_model": "width", "d_ff": "inner"})
    assert first.arguments == {"config": config, "layer_idx": 0}
    module = target.build(first, PROBE)
    assert (module.layer_idx, module.maps.weight.shape) == (0, (PROBE["inner"], PROBE["width"]))
