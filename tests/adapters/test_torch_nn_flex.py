"""PyTorch's flex_attention: every case that it runs, what runs, and what it leaves as it was."""

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from goldformer.adapters.builtin import torch_nn_flex as adapter

#: By component, the fewest cases with values that are judged; gradients are not: on a CPU there is no backward pass.
JUDGED = {"scaled_dot_product_attention": 60, "grouped_query_attention": 45, "cached_attention": 35}


@pytest.mark.parametrize("dtype", adapter.DTYPES)
@pytest.mark.parametrize("component", JUDGED)
def test_every_case_that_is_judged_passes(component, dtype, bench, verdicts_of):
    verdicts = verdicts_of(bench("torch-nn-flex", dtype), component)
    assert [(v.check, v.message) for v in verdicts if v.bad] == []
    assert len([v for v in verdicts if v.ratio is not None]) >= JUDGED[component]
    # A case of gradients is no fault either.
    assert any(v.message.startswith("FlexAttention does not support backward on CPU") for v in verdicts) == (
        component != "cached_attention"
    )


def test_it_is_flex_attention_that_runs_and_the_compiler_is_as_before(monkeypatch):
    calls = []
    run = flex.flex_attention

    def spy(*args, **options):
        calls.append((options["enable_gqa"], flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG))
        return run(*args, **options)

    monkeypatch.setattr(flex, "flex_attention", spy)
    query, key = torch.ones(1, 4, 3, 2), torch.ones(1, 2, 5, 2)
    assert adapter.grouped_query_attention(query, key, key, softcap=1.0).eq(1).all()
    with pytest.raises(ValueError, match="Expect query and key/value to have the same embedding dimension"):
        adapter.grouped_query_attention(query, key[..., 1:], key)
    assert calls == [(True, True)] * 2
    assert flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG is False


def test_a_sink_as_large_as_the_only_score_takes_half():
    query, key = torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 1, 2)
    assert adapter.grouped_query_attention(query, key, key, sinks=torch.zeros(1)).flatten().tolist() == [0.5, 0.5]
