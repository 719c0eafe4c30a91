"""The names in code: those that say that it is made for half types."""

from __future__ import annotations

import pytest
import torch

from goldformer.adapters.identifiers import is_made_for_half_types


def upcast(x):
    return x.float().softmax(-1)


def cast(x):
    return x.to(torch.float32)


def sum_wide(x):
    return torch.softmax(x, -1, dtype=torch.float32)


def name_type(x):
    return x.dtype in (torch.float16, torch.float32)


def run_under_autocast(x):
    with torch.autocast("cpu"):
        return x


def call_another(x):
    def call(y):
        return upcast(y)

    return call(x)


class Module(torch.nn.Module):
    def forward(self, x):
        return x.half()


def build_and_call(x):
    return Module()(x)


def make_table(x):
    return x + torch.arange(0, 4, 2)[:2].float() + torch.zeros(2, dtype=torch.float32)


def hide(scores, mask):
    half = scores.shape[-1] // 2
    return scores[..., :half].masked_fill(~mask, float("-inf")).to(scores.dtype)


@pytest.mark.parametrize(
    "function", [upcast, cast, sum_wide, name_type, run_under_autocast, call_another, Module, build_and_call]
)
def test_code_that_names_half_types_or_casts_its_input_is_made_for_them(function):
    assert is_made_for_half_types(function)


@pytest.mark.parametrize("function", [make_table, hide, torch.softmax])
def test_tables_and_numbers_in_float32_say_nothing_of_half_types(function):
    assert not is_made_for_half_types(function)
