"""A page for each component: its contract, what it depends on, its refusals, its cases and its properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from goldformer.adapters.skeleton import write_example
from goldformer.spec import Case, Contract, Spec
from goldformer.spec.markdown import markdown_table
from goldformer.spec.model import ArraySpec, AttributeSpec
from goldformer.spec.tables import Property
from goldformer_site.markdown import Words, cite_rows, fields, link, links, render_term, target, toctree

#: The components under headings, for who looks for one.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Attention": (
        "softmax",
        "scaled_dot_product_attention",
        "single_head_attention",
        "multi_head_attention",
        "fused_multi_head_attention",
        "grouped_query_attention",
        "cached_attention",
    ),
    "Masks and sequences": (
        "causal_mask",
        "sliding_window_mask",
        "padding_mask",
        "position_ids",
        "pad_or_truncate",
        "shift_right",
    ),
    "Embeddings and layers": (
        "token_embedding",
        "positional_encoding",
        "layer_norm",
        "rms_norm",
        "rotary_embedding",
        "alibi_bias",
        "feed_forward",
        "gated_feed_forward",
        "expert_router",
        "expert_feed_forward",
        "dropout",
        "encoder_layer",
        "decoder_layer",
        "decoder_only_layer",
        "output_probabilities",
        "xavier_uniform",
    ),
    "Stacks and models": ("encoder", "decoder", "transformer", "decoder_only_model", "cached_model"),
    "Loss and training": (
        "one_hot",
        "label_smoothing",
        "cross_entropy",
        "kl_divergence",
        "single_head_attention_step",
    ),
    "Decoding": ("greedy_decode", "beam_search", "generate", "token_filter"),
}


def pages(spec: Spec) -> Mapping[str, str]:
    """Return the index page of the components, and one page for each."""
    writer = _ComponentWriter(spec)
    parts = [
        "(the-components)=\n# Components\n\nIn each group, components come before those that are built of them. "
        "What the words of a contract mean stands in [how to read the data](#how-to-read-the-data).\n"
    ]
    for heading, names in GROUPS.items():
        rows = [
            (link("component", name), writer.words.plain(contract.title), str(len(spec.cases_of(name))))
            for name, contract in spec.contracts.items()
            if name in names
        ]
        parts.append(f"## {heading}\n\n" + markdown_table(("component", "what it is", "cases"), rows))
    parts.append(toctree((name for names in GROUPS.values() for name in names), hidden=True))
    index = "\n".join(parts)
    return {"components/index.md": index, **{f"components/{name}.md": writer.page(name) for name in spec.components}}


class _ComponentWriter:
    """Writes the pages of one spec's components."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.words = spec, Words(spec)

    def page(self, name: str) -> str:
        """Return the page of one component."""
        contract = self.spec.contracts[name]
        own = [prop for prop in self.spec.properties.values() if prop.component == name]
        cases = self.spec.cases_of(name)
        golden = [case for case in cases if case.error is None]
        refusals = [case for case in cases if case.error is not None]
        used_by = [other.component for other in self.spec.contracts.values() if name in other.depends_on]
        mistakes = [mistake.id for mistake in self.spec.mistakes.values() if mistake.component == name]
        head = fields(
            [
                ("Edition", str(self.spec.edition_of(name))),
                ("Built of", links("component", contract.depends_on)),
                ("Part of", links("component", used_by)),
                ("Conventions", links("convention", contract.conventions)),
                ("Computed in at least", contract.computed_in_at_least or ""),
                ("Known mistakes", links("mistake", mistakes)),
            ]
        )
        parts = [
            f"{target('component', name)}# {name.replace('_', ' ').capitalize()}\n\n{self._begin(contract)}",
            head,
            *self._contract(contract),
            "## Clauses\n\n" + self._clauses([*cases, *own]),
            "## Cases\n\n" + "\n".join(map(self._case, golden)) if golden else "",
            "## Refusals\n\n" + "\n".join(map(self._refusal, refusals)) if refusals else "",
            "## Properties\n\n" + "".join(f"- {link('property', p.id)}: {self.words.plain(p.title)}\n" for p in own)
            if own
            else "",
        ]
        return "\n".join(part for part in parts if part)

    def _begin(self, contract: Contract) -> str:
        """Return the name, the formula, and the shortest adapter; the heading has words, for the search."""
        what = f"`{contract.component}`: {self.words.plain(contract.title)}."
        return f"{what}\n\n> `{contract.formula}`\n\n```python\n{write_example(contract)}```\n"

    def _contract(self, contract: Contract) -> Iterable[str]:
        params = [*contract.params.values()]
        for stack in contract.layers:
            # The pages show one of the layers, with the number n.
            params += [replace(spec, name=f"{stack.prefix}.n.{name}") for name, spec in stack.params.items()]
        outputs = [contract.outputs[name] for name in contract.flow]
        first = f"\nA bare result is `{contract.first_output}`; the outputs stand in the order of their computation.\n"
        yield self._arrays("Inputs", contract.inputs.values())
        yield self._arrays("Parameters", params)
        yield self._attributes(contract.attributes.values())
        yield self._arrays("Outputs", outputs) + (first if len(outputs) > 1 else "")

    def _arrays(self, title: str, arrays: Iterable[ArraySpec]) -> str:
        rows = [(f"`{a.name}`", a.kind, self._shape(a), self._remarks(a)) for a in arrays]
        return f"## {title}\n\n" + markdown_table(("name", "kind", "shape", ""), rows) if rows else ""

    def _shape(self, array: ArraySpec) -> str:
        return ("broadcasts to " if array.broadcast else "") + f"`{array.shape}`"

    def _remarks(self, array: ArraySpec) -> str:
        blind = f"no result depends on it: {self.words.plain(array.blind)}" if array.blind else ""
        facts = ("optional" if array.optional else "", f"0 ≤ id < `{array.below}`" if array.below else "", blind)
        return "; ".join(filter(None, facts))

    def _attributes(self, attributes: Iterable[AttributeSpec]) -> str:
        rows = []
        for a in attributes:
            facts = (
                "optional" if a.optional else "",
                f"is the size `{a.size}`" if a.size else "",
                f"at least {a.minimum:g}" if a.minimum is not None else "",
                f"above {a.above:g}" if a.above is not None else "",
                f"at most {a.maximum:g}" if a.maximum is not None else "",
                f"at most `{a.at_most}`" if a.at_most else "",
                f"a multiple of {a.multiple_of if isinstance(a.multiple_of, int) else f'`{a.multiple_of}`'}"
                if a.multiple_of
                else "",
                f"0 ≤ id < `{a.below}`" if a.below else "",
            )
            rows.append((f"`{a.name}`", a.kind, "; ".join(filter(None, facts))))
        return "## Attributes\n\n" + markdown_table(("name", "kind", ""), rows) if rows else ""

    def _clauses(self, showing: Iterable[Case | Property]) -> str:
        named = {clause for item in showing for clause in item.clauses}
        clauses = [clause for clause in self.spec.clauses.values() if clause.id in named]
        return "".join(
            f"- {link('clause', c.id)} {c.level.value}: {self.words.plain(c.title, but=c.id)}\n" for c in clauses
        )

    def _case(self, case: Case) -> str:
        wanted = ", ".join(f"`{name}`" for name in case.expect)
        asked = f"gradients of {wanted}" if case.cotangent is not None else wanted
        leading = [f"lead {list(case.lead)}"] if case.lead else []
        sizes = ", ".join([*leading, *(f"{name} {size}" for name, size in case.sizes.items())])
        only = ", ".join(f"`{c}` = `{option}`" for c, option in case.only_with.items())
        facts = [
            ("asks for", asked),
            ("sizes", self.words.plain(sizes)),
            ("shows", links("clause", case.clauses)),
            ("source", cite_rows(case.source) if case.source else ""),
            ("under every option of", links("convention", case.conventions)),
            ("with", only),
            ("catches", links("mistake", case.kills)),
        ]
        return target("case", case.id) + render_term(
            f"`{case.id}`",
            f"{self.words.plain(case.title)}.",
            "; ".join(f"{name} {text}" for name, text in facts if text) + ".",
        )

    def _refusal(self, case: Case) -> str:
        base = f"like {link('case', case.base)} but for the fault; " if case.base else ""
        return target("case", case.id) + render_term(
            f"`{case.id}`",
            f"{self.words.plain(case.title)}.",
            f"must refuse `{case.error}`; {base}shows {links('clause', case.clauses)}.",
        )
