"""The search for the wirings of a class or a function that golden values fit.

Each proposal is called with golden cases, first without a mask, then with masks, then where conventions show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from typing import Final

import numpy as np

from goldformer.adapters import Adapter
from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.inference import (
    SESSIONS,
    Cache,
    MaskForm,
    Returns,
    TableForm,
    Target,
    Tokens,
    Wiring,
    has_batch_axis,
    keeps_cache,
    list_forms,
    load_wiring,
    makes_causal_mask,
    may_hide_future,
    pass_padding,
    propose,
    propose_caches,
    says_ignore,
    switches_mask,
    use_cache,
)
from goldformer.conformance.diagnosis.candidates import Candidate, Imitations, Textbooks
from goldformer.conformance.diagnosis.edits.solve import fit_constant
from goldformer.conformance.diagnosis.failure import FailingCase
from goldformer.conformance.judging.cases import Bench, Judgement, judge_case
from goldformer.conformance.judging.expected import expect
from goldformer.conformance.judging.invoke import Arguments, CallProblem, NotImplementedHere, Result
from goldformer.conformance.judging.measure import measure
from goldformer.conformance.judging.verdict import Status
from goldformer.spec import Case, Spec
from goldformer.spec.call import Array
from goldformer.spec.formulas.options import EPS
from goldformer.spec.model import UNSPECIFIED
from goldformer.spec.tables import write_number

#: The most wirings of a component that are tried.
_MOST: Final = 320

#: The numbers of cases that decide: without a mask, with one, and on a convention.
_PLAIN, _MASKED, _DECIDING = 3, 12, 4

#: The most trials of a component, and the most other ways to name parameters that are tried after one that fits.
_MOST_TRIALS: Final = 600
_MOST_RIVALS: Final = 24

#: A case of more numbers than this decides only where no smaller one can be called.
_LARGE: Final = 6000

#: A case of more numbers decides nothing: to compute what it expects takes seconds, and smaller ones show the same.
_HUGE: Final = 20_000

#: The results that a call may return, in the order in which they are tried.
_RETURNS: Final[tuple[Returns, ...]] = ("as_it_is", "pair", "first")

#: Those that only some components have.
_OWN_RETURNS: Final[Mapping[str, tuple[Returns, ...]]] = {"transformer": ("flat",), "positional_encoding": ("of_ids",)}

#: The numbers of axes that arrays of any number may be held to, 0 for any, in the order in which they are tried.
_AXES: Final = {
    "scaled_dot_product_attention": (0, 4, 3, 2),
    "layer_norm": (0, 3, 2),
    "rms_norm": (0, 3, 2),
    "rotary_embedding": (0, 4, 3, 2),
    "softmax": (0, 3, 2),
}

#: The functions that may take only values as wide as keys, as most kernels do.
_KERNELS: Final = ("scaled_dot_product_attention",)

#: The conventions that show in cases without a mask; parameters decide some others, and empty rows come last.
_SHOWN: Final = (
    "norm_placement", "layer_norm_eps", "rms_norm_eps", "rms_norm_eps_place", "rms_norm_weight", "embedding_scale",
    "pe_layout", "rope_pairing", "rope_direction", "gqa_groups",
)  # fmt: skip
_LATE: Final = ("empty_row", "odd_d_model", "target_mask")

#: The options of a convention that are tried only where the code names them, with the words by which it does.
_NAMED: Final = {
    "activation": {"gelu": "gelu", "gelu_tanh": "gelu", "silu": "silu|swish"},
    "gate_activation": {"gelu": "gelu|geglu", "gelu_tanh": "gelu|geglu", "relu": "relu|reglu"},
    "norm_divisor": {"std_plus_eps": r"\bstd\b"},
}

#: The signs in code of options that no name says, for code that golden values do not fit.
_TANH: Final = {"gelu_tanh": r"""approximate=["']tanh|\btanh\("""}
_SHOWN_BY: Final = {
    "activation": _TANH,
    "gate_activation": _TANH,
    "pe_layout": {"concatenated": r"\b(cat|concat|concatenate)\("},
    "rope_pairing": {"half": r"rotate_half|chunk\(2|// ?2 ?\]"},
    "rms_norm_weight": {"one_plus_w": r"\b1(\.0)? ?\+ ?self\."},
}

#: Code that adds a mask to scores.
_ADDED: Final = re.compile(r"\+=?\s*\w*mask\b")

#: What calls show of later tokens, and code that takes a fused projection apart.
_HIDES: Final = "hides_later_tokens"
_ORDER: Final = re.compile(r"\b([qkv])\w*\s*,\s*([qkv])\w*\s*,\s*([qkv])\w*\s*=(?!=)")

#: A small number in code, and the largest that is tried as an eps: a rate of a dropout is larger.
_NUMBER: Final = re.compile(r"(?<![\w.])(?:\d+\.?\d*[eE]-\d+|0?\.\d+)")
_LARGEST_EPS: Final = 1e-2

#: The reasons of failures that say nothing of values: the call does not work in this form.
_MISFITS: Final = ("wrong-shape", "not-an-array", "raised", "nothing-returned", "wrong-parameters", "wrong-dtype")

#: The gains of the norms of a layer; a norm after a stack is none of them.
_NORM_GAIN: Final = re.compile(r"norm_\d\.gamma$")

#: The axes of an input with a batch, and the fewest tokens of which one is later than another.
_BATCHED, _FEW = 3, 2

#: The axes of a mask that says something of each sample, head, query and key.
_MASK_AXES: Final = 4

#: The sessions that decide how a cache is passed.
_SESSIONS: Final = 6

#: The numbers of tokens that a call may take, the most first, and the components that a class can be with one a call.
_TOKENS: Final[tuple[Tokens, ...]] = ("any", "one_after", "one")
_STEPPED: Final = ("decoder_only_model", "decoder_only_layer", "multi_head_attention", "fused_multi_head_attention")

#: A change of an output that is smaller may be rounding.
_ROUNDING: Final = 1e-4

#: The message of a call in float64 whose code makes float32.
_DTYPES_DIFFER: Final = re.compile(r"same dtype|Double|FloatTensor|float32|scalar type")


@dataclass(frozen=True)
class Trial:
    """The judgements of a wiring on some cases."""

    wiring: Wiring
    judgements: tuple[Judgement, ...]

    @property
    def passed(self) -> int:
        """The number of cases whose values are right, perhaps only to float32."""
        return sum(j.verdict.status is Status.PASSED or j.verdict.reason == "precision" for j in self.judgements)

    @property
    def is_misfit(self) -> bool:
        """Return True if a call does not work in this form."""
        return any(j.verdict.bad and j.verdict.reason in _MISFITS for j in self.judgements)

    @property
    def fits(self) -> bool:
        """Return True if some case passes and none fails."""
        return self.passed > 0 and not any(j.verdict.bad or j.verdict.is_fault for j in self.judgements)


class WiringSearch:
    """The search for the wirings of one component that golden values fit."""

    def __init__(self, spec: Spec, target: Target, component: str, wirings: Iterable[Wiring] = ()) -> None:
        self.spec, self.target, self.component = spec, target, component
        self.wirings = [*wirings] or list(islice(propose(target, component, spec), _MOST))
        self.trials = 0
        #: The dtype of the calls, and True if calls in float64 raised for their dtype.
        self.dtype, self.is_of_float32 = "float64", False
        self._loaded: tuple[Wiring, Adapter] | None = None
        #: The trials that gave values, right ones or wrong ones, and the last message of those that did not.
        self.running: list[Trial] = []
        self.problem = "every golden case was skipped"

    def find(self) -> list[Wiring]:
        """Return the wiring that golden values fit, and those that only name the parameters differently, or []."""
        found = self._find_among(self._list_plain_forms())
        if found or (self.running and not self._requires_mask()):
            return found
        # Some code cannot be called without a mask, and some takes None for one that hides everything.
        return self._find_among(self._list_forms(always=True))

    def find_steps(self) -> list[Wiring]:
        """Return the wirings that fit if a class that keeps a cache is called with one token after the other.

        Only a class that raises for several tokens, or all of whose tokens then see all others, is called so.
        """
        if self.component not in _STEPPED or not keeps_cache(self.target):
            return []
        tried = ((trial, trial.judgements[0].case) for trial in self.running[:1])
        unmasked = any(case and self._sees_all(trial.wiring, case, case.sizes.get("seq", 1)) for trial, case in tried)
        tokens: tuple[Tokens, ...] = ("any", "one") if unmasked or not self.running else ("any",)
        plain, running, dtype = self.wirings, [*self.running], self.dtype
        for number, cache in product(tokens, [*propose_caches(self.target, self.component)]):
            if number == "any" and not cache.setup:
                continue
            self.wirings = [replace(wiring, cache=replace(cache, tokens=number)) for wiring in plain]
            found = self._find_among(self._list_plain_forms())
            if not found and self.is_of_float32 and self.dtype == "float64":
                self.dtype = "float32"
                found = self._find_among(self._list_plain_forms())
            if found:
                return found if self.dtype == "float64" else [self.find_dtypes(wiring) for wiring in found]
        # What the names say is then called at once.
        self.wirings, self.running, self.dtype = plain, running or self.running, dtype
        return []

    def find_session(self, wiring: Wiring) -> Wiring | None:
        """Return the wiring of the component that a wiring is in several calls, or None if no call of it works.

        What the names say is called, and the wiring that most cases admit is taken. If a continued call of several
        tokens raises, or makes no mask, only calls of one token follow the first.
        """
        component = SESSIONS.get(self.component)
        if component is None or not keeps_cache(self.target):
            return None
        found: list[Trial] = []
        session = replace(
            wiring, contract=self.spec.contracts[component], arguments=use_cache(wiring.arguments, self.target)
        )
        search = WiringSearch(self.spec, self.target, component, [session])
        search.dtype = self.dtype
        caches = [wiring.cache] if wiring.cache else propose_caches(self.target, self.component)
        for cache in caches:
            trial = search.try_session(replace(session, cache=cache))
            found += [trial] if trial else []
            if trial and trial.fits:
                break
        if not found:
            return None
        best = max(found, key=lambda trial: trial.passed).wiring
        return search.declare_state(best)

    def try_session(self, wiring: Wiring) -> Trial | None:
        """Return the trial of a session with as many tokens a call as the class takes; None if no call works."""
        first = wiring.cache.tokens if wiring.cache else "any"
        for tokens in _TOKENS[_TOKENS.index(first) :]:
            some = replace(wiring, cache=replace(wiring.cache or Cache(), tokens=tokens))
            cases = [case for case in self._plain(wiring.mask) if not _gives_twice(case)]
            trial = self._try(some, cases, most=_SESSIONS, thorough=True)
            if trial.passed and not trial.is_misfit and (trial.fits or not self._makes_no_mask(some, tokens)):
                return trial
        return None

    def _makes_no_mask(self, wiring: Wiring, tokens: Tokens) -> bool:
        """Return True if a call of a session makes no mask: the first one or, with "any", a later one."""
        for is_first in {"any": (True, False), "one_after": (True,), "one": ()}[tokens]:
            cases = ((case, _list_calls(case)) for case in self._plain(wiring.mask))
            case = next(case for case, calls in cases if calls[-1] > 1 and (len(calls) == 1) is is_first)
            if self._sees_all(wiring, case, _list_calls(case)[-1]):
                return True
        return False

    def _sees_all(self, wiring: Wiring, case: Case, rows: int) -> bool:
        """Return True if each of the last tokens of a case depends on every token of it.

        A model is called with one layer: in others a token sees by way of another one what a wrong mask hides.
        """
        params, attributes = case.param_arrays, dict(case.attributes)
        if "num_layers" in attributes:
            attributes["num_layers"] = 1
            params = {name: array for name, array in params.items() if not re.match(r"layers\.[1-9]", name)}
        bench, first = Bench(self.spec, self._load(wiring), self.dtype, "cpu"), wiring.contract.first_output

        def run(inputs: Mapping[str, Array]) -> Array:
            return bench.call(self.component, Arguments(inputs, params, attributes)).outputs[first][..., -rows:, :]

        inputs = {name: array for name, array in case.input_arrays.items() if not name.endswith("mask")}
        try:
            plain = run(inputs)
            for place in range(case.sizes["seq"]):
                other = run({name: _change_token(array, place) for name, array in inputs.items()})
                axes = tuple(axis for axis in range(plain.ndim) if axis != plain.ndim - 2)
                if not (abs(other - plain).max(axes) > _ROUNDING).all():
                    return False
        except CallProblem:
            return False
        return True

    def declare_state(self, wiring: Wiring) -> Wiring:
        """Return the wiring that declares that each state is given to one call only: the object itself, and others."""
        cases = [case for case in self._cases if _gives_twice(case)]
        if wiring.cache and wiring.cache.argument and self._try(wiring, cases, most=_DECIDING).fits:
            return wiring
        return replace(wiring, conventions={**wiring.conventions, "cache_state": "consumed"})

    def _requires_mask(self) -> bool:
        """Return True if a mask has no default."""
        masks = self.wirings[0].arguments.all_masks
        return any(argument.is_required and argument.name in masks for argument in self.target.list_arguments())

    def _find_among(self, forms: Iterable[MaskForm]) -> list[Wiring]:
        # The forms of rotary tables that can be read at all do not depend on how masks come.
        readable: dict[bool, set[TableForm | None]] = {}
        widths = (False, True) if self.component in _KERNELS and not self.target.is_class else (False,)
        layouts = product(forms, self._list_sequences(), widths, _AXES.get(self.component, (0,)))
        for form, sequence_first, equal, axes in layouts:
            for returns in (*_RETURNS, *_OWN_RETURNS.get(self.component, ())):
                arranged = [
                    replace(
                        wiring,
                        mask=form,
                        returns=returns,
                        sequence_first=sequence_first,
                        axes=axes,
                        equal_widths=equal,
                    )
                    for wiring in self.wirings
                    if sequence_first not in readable or wiring.arguments.table_form in readable[sequence_first]
                ]
                misfits, ran_with = [], set[TableForm | None]()
                for wiring in arranged:
                    # If the target cannot be called in this form, another order of its weights does not help.
                    called = (wiring.construction, wiring.arguments, wiring.naming.turned)
                    if called in misfits:
                        continue
                    found, ran = self._find_options(wiring)
                    if found is not None:
                        return [found, *self._list_rivals(found)]
                    misfits += [] if ran else [called]
                    ran_with |= {wiring.arguments.table_form} if ran else set()
                if ran_with:
                    readable[sequence_first] = ran_with
                    break
        return []

    def _list_plain_forms(self) -> list[MaskForm]:
        """Return the forms of calls without a mask: without one, or with the future that the target always hides."""
        forms = self._list_forms()
        if forms and ("source" in self.wirings[0].contract.inputs or self.component == "decoder_only_layer"):
            return forms
        hides = may_hide_future(self.target, self.wirings[0].arguments, self.wirings[0].contract)
        return [MaskForm(), *([MaskForm("causal")] if hides else [])]

    def _list_forms(self, *, always: bool = False) -> list[MaskForm]:
        """Return the forms of masks that the target may take; with `always`, also where the call has no mask."""
        first = self.wirings[0]
        return [replace(form, always=always) for form in list_forms(first.arguments, first.contract, self.target)]

    def _list_sequences(self) -> tuple[bool, ...]:
        has_sequence = self.target.is_class and "source" not in self.wirings[0].contract.inputs
        return (False, True) if has_sequence else (False,)

    def _find_options(self, wiring: Wiring) -> tuple[Wiring | None, bool]:
        """Return the complete wiring under the options that fit, or None, and whether the call works at all."""
        options_left, runs = self._narrow_options(wiring)
        for options in options_left:
            if self.trials >= _MOST_TRIALS:
                break
            trial = self._try(replace(wiring, conventions=options), self._plain(wiring.mask))
            if trial.is_misfit:
                break
            runs = runs or bool(trial.judgements)
            if trial.fits and (masked := self._fit_masks(trial.wiring)) is not None:
                return self._declare(masked), True
        return None, runs

    def _narrow_options(self, wiring: Wiring) -> tuple[list[dict[str, str]], bool]:
        """Return the options whose golden values one call has, or all of them, and whether that call ran.

        The tolerance is that of float32: code that computes in it is tried further.
        """
        every = self._list_options()
        deciding = (case for case in self._plain(wiring.mask) if set(every[0]) <= set(case.conventions))
        case = next(deciding, None) if len(every) > 1 else None
        trial = self._try(replace(wiring, conventions=every[0]), [case]) if case is not None else None
        if case is None or trial is None or not trial.judgements:
            return every, False
        (judgement,) = trial.judgements
        if not isinstance(judgement.outcome, Result):
            return [], False
        called = judgement.case or case
        declared, contract = judgement.bench.options(called), wiring.contract
        fitting = [
            options
            for options in every
            if (expected := expect(called, {**declared, **options}, contract, "float32"))
            and not any(d.wrong for d in measure(judgement.outcome, expected, called, contract, "float32"))
        ]
        return fitting, True

    def _list_rivals(self, found: Wiring) -> list[Wiring]:
        """Return the wirings that fit as well, of those that name the parameters in another way."""
        likely = self.wirings[:_MOST_RIVALS]
        # Tables of another form hold the same numbers.
        arguments = [wiring.arguments.agree(found.arguments) for wiring in likely]
        others = (
            replace(found, naming=wiring.naming, arguments=own, construction=wiring.construction)
            for wiring, own in zip(likely, arguments, strict=True)
        )
        rivals = (wiring for wiring in others if not _is_same_naming(wiring, found))
        return [wiring for wiring in rivals if self._try(wiring, self._plain(found.mask)).fits]

    def _fit_masks(self, wiring: Wiring) -> Wiring | None:
        """Return the wiring whose masks fit too, or None. A narrower form counts where no wider one can be called."""
        if not wiring.arguments.all_masks or not self._masked:
            return wiring
        if wiring.mask.shape == "causal":
            return self._fit_masks_of_padding(wiring)
        wiring = self._leave_out_hint(wiring)
        works: set[str] = set()
        narrow: Wiring | None = None
        for form in self._list_further_forms(wiring):
            if form.polarity in works:
                continue
            trial = self._try_masks(replace(wiring, mask=form))
            if trial.fits and self._takes_four_axes(trial):
                return trial.wiring
            if trial.fits and narrow is None:
                narrow = trial.wiring
            if form.shape == "four_axes" and not trial.is_misfit:
                works.add(form.polarity)
        return narrow

    def _leave_out_hint(self, wiring: Wiring) -> Wiring:
        """Return the wiring without a switch that raises if the mask is left out: it is a hint on the mask then."""
        if not wiring.arguments.switch:
            return wiring
        cases = [case for case in self._masked if switches_mask(wiring, case.input_arrays)]
        is_hint = self._try(wiring, cases, thorough=True).is_misfit
        return replace(wiring, arguments=wiring.arguments.leave_out_switch()) if is_hint else wiring

    def _takes_four_axes(self, trial: Trial) -> bool:
        """Return False if a mask that fits cannot come with all four axes, and the adapter does not decline that.

        Where only causal masks were judged, all of them had two axes.
        """
        case = trial.judgements[0].case
        if case is None or not has_batch_axis(trial.wiring.contract):
            return True
        masks = {name: array for name, array in case.input_arrays.items() if name.endswith("mask")}
        wide = {name: array.reshape((1,) * (_MASK_AXES - array.ndim) + array.shape) for name, array in masks.items()}
        given = Arguments({**case.input_arrays, **wide}, case.param_arrays, case.attributes)
        try:
            Bench(self.spec, self._load(trial.wiring), self.dtype, "cpu").call(self.component, given)
        except NotImplementedHere:
            return True
        except CallProblem:
            return False
        return True

    def _fit_masks_of_padding(self, wiring: Wiring) -> Wiring:
        """Return the wiring that takes masks besides the future that the target hides, or the one without masks."""
        both = {**wiring.conventions, "later_tokens": "hidden_too"}
        forms = [replace(f, shape="causal_keys") if f.shape == "keys" else f for f in self._list_forms()]
        trials = (self._try_masks(replace(wiring, mask=form, conventions=both)) for form in forms)
        return next((trial.wiring for trial in trials if trial.fits), wiring)

    def _declare(self, wiring: Wiring) -> Wiring:
        """Return a wiring with the options of the conventions that show in few cases."""
        for name in _LATE:
            cases = [case for case in self._cases if name in case.conventions]
            if name not in wiring.contract.conventions or not cases:
                continue
            convention = self.spec.conventions[name]
            options = [convention.default, *(o for o in convention.options if o != convention.default)]
            options += [UNSPECIFIED] if convention.left_open else []
            tried = (replace(wiring, conventions={**wiring.conventions, name: option}) for option in options)
            fitting = next((some for some in tried if self._try(some, cases, most=_DECIDING).fits), None)
            if fitting is not None and fitting.conventions[name] != convention.default:
                wiring = fitting
        return wiring

    def _try(
        self,
        wiring: Wiring,
        cases: Iterable[Case],
        *,
        most: int = _PLAIN,
        thorough: bool = False,
        dtype: str = "",
    ) -> Trial:
        """Judge cases until enough are judged or one fails; with `thorough`, values that are wrong do not end it."""
        self.trials += 1
        bench = Bench(self.spec, self._load(wiring), dtype or self.dtype, "cpu")
        judged: list[Judgement] = []
        for case in cases:
            judgement = judge_case(case, bench, in_ways=False)
            verdict = judgement.verdict
            if verdict.is_judged or verdict.is_fault:
                judged.append(judgement)
            misfit = verdict.bad and verdict.reason in _MISFITS
            if misfit or (verdict.bad and not thorough) or len(judged) >= most:
                break
        trial = Trial(wiring, tuple(judged))
        if trial.is_misfit:
            self.problem = f"it {judged[-1].verdict.message}"
            self.is_of_float32 |= _DTYPES_DIFFER.search(self.problem) is not None
        elif judged:
            self.running.append(trial)
        return trial

    def find_dtypes(self, wiring: Wiring) -> Wiring:
        """Return a wiring that works in float32, and not in float64, with all dtypes in which it can be called."""
        halves = [dtype for dtype in ("float16", "bfloat16") if dtype in LIBRARIES[self.target.arrays].dtypes]
        works = [d for d in halves if not self._try(wiring, self._plain(wiring.mask), most=1, dtype=d).is_misfit]
        return replace(wiring, dtypes=("float32", *works))

    def _try_masks(self, wiring: Wiring, dtype: str = "") -> Trial:
        """Judge cases whose masks are passed on; a causal one that a switch replaces says nothing of their form."""
        cases = self._masked
        if wiring.arguments.switch:
            cases = [case for case in cases if not switches_mask(wiring, case.input_arrays)]
        return self._try(wiring, cases, most=_MASKED, thorough=True, dtype=dtype)

    def _load(self, wiring: Wiring) -> Adapter:
        """Return the adapter of a wiring; that of the last one, if only the options differ."""
        bare = replace(wiring, conventions={})
        if self._loaded is None or self._loaded[0] != bare:
            self._loaded = bare, load_wiring(bare, self.spec)
        return replace(self._loaded[1], conventions=wiring.declared)

    @cached_property
    def _cases(self) -> list[Case]:
        """The cases that may decide; the large ones come last, and before them those that some code refuses to take."""
        some = [case for case in self.spec.cases_of(self.component) if _may_decide(case)]
        return sorted(some, key=lambda case: (case.size > _LARGE, _has_odd_width(case)))

    def _plain(self, form: MaskForm) -> list[Case]:
        """Return the cases without a mask; with the future hidden, those first whose only mask hides it."""
        some = [case for case in self._cases if not set(_LATE) & set(case.conventions)]
        if form.shape == "causal":
            return sorted(some, key=lambda case: case.changes_mask("only"))
        return [case for case in some if not _is_masked(case)]

    @cached_property
    def _masked(self) -> list[Case]:
        return [case for case in self._cases if _is_masked(case) and "empty_row" not in case.conventions]

    def _list_options(self) -> list[dict[str, str]]:
        """Return the combinations of the options that show without a mask; the documents' choices come first."""
        shown = self._list_open()
        return [dict(zip(shown, options, strict=True)) for options in product(*shown.values())]

    def _list_open(self) -> dict[str, list[str]]:
        """Return the options that show without a mask, by their conventions."""
        # No golden value shows the others.
        known = {name for case in self._cases for name in case.conventions}
        shown: dict[str, list[str]] = {n: list(self.spec.conventions[n].options) for n in _SHOWN if n in known}
        shown |= {name: options for name in _NAMED if name in known and (options := self._read(name))}
        for name, options in shown.items():
            options += [number for number in self._read_numbers(name) if number not in options]
        return shown

    def _read(self, convention: str) -> list[str]:
        """Return the options of a convention that the code may follow, the default last; none if it names no other."""
        text = self.target.text
        named = [o for o, words in _NAMED[convention].items() if re.search(words, text, re.IGNORECASE)]
        return [*named, self.spec.conventions[convention].default] if named else []

    def _read_numbers(self, convention: str) -> list[str]:
        """Return the numbers in the code that may be the eps which a convention chooses."""
        if not self.spec.conventions[convention].number:
            return []
        numbers = (float(text) for text in _NUMBER.findall(self.target.text))
        return list(dict.fromkeys(filter(None, (write_number(n) for n in numbers if n <= _LARGEST_EPS))))

    def declare_nan(self, wiring: Wiring) -> Wiring:
        """Return the wiring that declares NaN for rows without a key if wrong code gives NaN in these rows only.

        That shows without a right value. If it were not declared, one mistake would look like two.
        """
        nan = replace(wiring, conventions={**wiring.conventions, "empty_row": "nan"})
        cases = [case for case in self._cases if "empty_row" in case.conventions]
        if "empty_row" not in wiring.contract.conventions or not wiring.arguments.all_masks:
            return wiring
        for judgement in self._try(nan, cases, most=1, thorough=True).judgements:
            case, first = judgement.case, wiring.contract.first_output
            expected = expect(case, judgement.bench.options(case), wiring.contract, self.dtype) if case else None
            if expected is None or not isinstance(judgement.outcome, Result):
                continue
            empty = np.isnan(expected[first].values)
            actual = np.isnan(expected[first].select(judgement.outcome.outputs[first]))
            if empty.any() and np.array_equal(actual, empty):
                return nan
        return wiring

    def expect_causal(self, wiring: Wiring) -> Wiring:
        """Return the wiring that hides the future if the code makes a causal mask, whatever it then does with it."""
        is_whole = not (wiring.arguments.all_masks or wiring.arguments.switch or wiring.construction.constants)
        if is_whole and wiring.mask.shape == "absent" and makes_causal_mask(self.target, wiring.contract):
            return replace(wiring, mask=MaskForm("causal"))
        return wiring

    def pass_padding(self, wiring: Wiring) -> Wiring:
        """Return the wiring that makes the mask of a language model of pad_id, if no small case fails so."""
        arguments = pass_padding(wiring.arguments, self.target, wiring.contract)
        if arguments is None:
            return wiring
        padded = replace(wiring, arguments=arguments)
        return wiring if self.confirm(padded)[1] else padded

    def add_input(self, wiring: Wiring) -> Wiring:
        """Return the wiring that adds x to the result if a positional encoding fits only so: some cases have x = 0."""
        if self.component != "positional_encoding" or not self.confirm(wiring)[1]:
            return wiring
        added = replace(wiring, returns="addend")
        return wiring if self.confirm(added)[1] else added

    def hold_axes(self, wiring: Wiring) -> Wiring:
        """Return the wiring that declines arrays of other numbers of axes, if all that fails raises for those."""
        numbers = [axes for axes in _AXES.get(self.component, ()) if axes]
        if wiring.axes or not numbers:
            return wiring
        bad = [judgement.verdict for judgement in self.try_small(wiring) if judgement.verdict.bad]
        if not bad or any(verdict.reason != "raised" for verdict in bad):
            return wiring
        held = (Trial(some, self.try_small(some)) for some in (replace(wiring, axes=axes) for axes in numbers))
        return next((trial.wiring for trial in held if trial.fits), wiring)

    def confirm(self, wiring: Wiring) -> tuple[Wiring, int]:
        """Return a wiring that fits the cases that decide, and how many small ones fail.

        If the golden values of an eps fit that is not listed, the wiring declares it.
        """
        judgements = self.try_small(wiring)
        declared = self.declare_eps(wiring, judgements)
        return (declared, 0) if declared else (wiring, sum(judgement.verdict.bad for judgement in judgements))

    def declare_eps(self, wiring: Wiring, judgements: Sequence[Judgement]) -> Wiring | None:
        """Return the wiring that declares the eps with which all small cases fit; None if no other eps does it.

        Values that are right to float32 only are those of an eps next to it.
        """
        wrong = [judgement for judgement in judgements if not _is_exact(judgement)]
        first = FailingCase.of(wrong[0]) if wrong else None
        if first is None or not all(isinstance(judgement.outcome, Result) for judgement in wrong):
            return None
        for name in (name for name in EPS if name in wiring.contract.conventions):
            for number in self._list_eps(name, first):
                some = replace(wiring, conventions={**wiring.conventions, name: number})
                fits = all(map(_is_exact, self._try(some, [first.case]).judgements))
                if fits and all(map(_is_exact, self.try_small(some))):
                    return some
        return None

    def _list_eps(self, convention: str, failing: FailingCase) -> Iterator[str]:
        """Yield the powers of ten, then the number that is solved for, in as few digits as possible."""
        graph = Textbooks(self.spec, Imitations()).record(Candidate(), failing)
        value = None if graph is None else fit_constant(graph, EPS[convention], failing)
        solved = [float(f"{value:.{digits}g}") for digits in range(1, 10)] if value is not None else []
        yield from filter(None, map(write_number, (*(10.0**-k for k in range(1, 13)), *solved)))

    def try_small(self, wiring: Wiring) -> tuple[Judgement, ...]:
        """Return the judgements of a wiring on all small cases.

        What fails in float64 by NaN alone is judged in float32: the least number of float64, which hides keys in some
        code, is infinite in a softmax that is computed in float32.
        """
        small = [case for case in self._cases if case.size <= _LARGE]
        judgements = self._try(wiring, small, most=len(small), thorough=True).judgements
        reasons = {judgement.verdict.reason for judgement in judgements if judgement.verdict.bad}
        if reasons != {"not-finite"} or self.dtype == "float32":
            return judgements
        return self._try(wiring, small, most=len(small), thorough=True, dtype="float32").judgements

    def guess(self, said: Mapping[str, str]) -> tuple[Wiring, str]:
        """Return the wiring that names say, with the options that its parts `said`, and what names leave open, or "".

        If no form of masks can be called, its adapter passes the masks on, so that a check shows what happens.
        """
        trials = self._rank_trials()
        best, shown = trials[0].wiring, self._observe(trials[0])
        if shown.pop(_HIDES, False):
            best = next((trial.wiring for trial in trials if trial.wiring.mask.shape == "causal"), best)
        if not trials[0].fits:
            options = {name: self._choose(name, {**shown, **said}) for name in self._list_open()}
            chosen = {**best.conventions, **options}
            best = replace(best, conventions={name: option for name, option in chosen.items() if option})
        forms = self._list_further_forms(best)
        tried = [self._try_masks(replace(best, mask=form)) for form in forms]
        called = [trial for trial in tried if trial.judgements and not trial.is_misfit]
        # Where values decide nothing, names such as key_padding_mask do.
        likely = "ignore" if says_ignore(self.target, best.arguments) else "keep"
        likely = "added" if _ADDED.search(self.target.text) else likely

        def rank(trial: Trial) -> tuple[bool, int, bool]:
            return bool(trial.wiring.unsaid), -trial.passed, trial.wiring.mask.polarity != likely

        wiring = min(called, key=rank).wiring if called else replace(best, mask=forms[0])
        equal = [trial.wiring for trial in trials if trial.passed == trials[0].passed]
        wiring = self.declare_nan(self.expect_causal(wiring))
        return self.find_dtypes(wiring) if self.dtype == "float32" else wiring, _find_doubt(equal)

    def _choose(self, convention: str, said: Mapping[str, str]) -> str:
        """Return the option that parts or the code say of a convention, "" for the documents' choice."""
        if convention in said:
            return said[convention]
        numbers = self._read_numbers(convention)
        if len(numbers) == 1:
            return numbers[0]
        named = self._read(convention) if convention in _NAMED else []
        shown = (
            option for option, words in _SHOWN_BY.get(convention, {}).items() if re.search(words, self.target.text)
        )
        return next((option for option in shown if option in named or convention not in _NAMED), next(iter(named), ""))

    def _observe(self, trial: Trial) -> dict[str, str]:
        """Return whether the target hides later tokens and where its norms stand, as far as calls show it.

        Both show without a right value. Earlier outputs do not depend on a later input that is hidden. A norm whose
        gain is 0 gives its shift: if the norms stand last, that is the output. The answer is "" for no.
        """
        case = next((judgement.case for judgement in trial.judgements if judgement.case is not None), None)
        inputs = dict(case.input_arrays) if case is not None else {}
        tokens: list[str] = [name for name in ("x", "query", "key", "value") if name in inputs]
        if case is None or not tokens or inputs[tokens[0]].ndim < _BATCHED or inputs[tokens[0]].shape[-2] < _FEW:
            return {}
        gains = {name: 0 * array for name, array in case.param_arrays.items() if _NORM_GAIN.search(name)}
        bench = Bench(self.spec, self._load(trial.wiring), self.dtype, "cpu")

        def run(changes: Mapping[str, Array], params: Mapping[str, Array]) -> Array:
            given = Arguments({**inputs, **changes}, {**case.param_arrays, **params}, case.attributes)
            return bench.call(self.component, given).outputs[trial.wiring.contract.first_output]

        later: dict[str, Array] = {name: _change_token(inputs[name]) for name in tokens}
        try:
            change = abs(run({}, {}) - run(later, {})) > _ROUNDING
            shown = {_HIDES: "yes" if change.any() and not change[..., :-1, :].any() else ""}
            if gains:
                shifts = [case.param_arrays.get(name.replace("gamma", "beta"), 0 * gains[name]) for name in gains]
                is_last = any(np.allclose(run({}, gains), shift) for shift in shifts)
                shown["norm_placement"] = "post" if is_last else "pre"
        except CallProblem:
            return {}
        return shown

    def _rank_trials(self) -> list[Trial]:
        """Return the trials that gave values, those that came furthest first.

        A sequence that would come first is left out unless the code says it: turned, right code looks like a mistake.
        """
        said = [trial for trial in self.running if "sequence-first" not in trial.wiring.unsaid]
        orders = ("", "kv", _read_order(self.target))

        def rank(trial: Trial) -> tuple[int, bool, bool]:
            return -trial.passed, trial.wiring.mask.shape != "absent", trial.wiring.naming.order not in orders

        ranked = sorted(said, key=rank)
        if self.component != "decoder_only_layer":
            return ranked
        # Its mask is the causal one in every call: in the right form it hides later tokens.
        called = {(t.wiring.mask, t.wiring.returns, t.wiring.arguments.table_form): t for t in reversed(ranked)}
        hides = {key: self._observe(trial).get(_HIDES, "") for key, trial in called.items()}
        return sorted(ranked, key=lambda t: not hides[t.wiring.mask, t.wiring.returns, t.wiring.arguments.table_form])

    def _list_further_forms(self, wiring: Wiring) -> list[MaskForm]:
        """Return the forms of masks that are open: every one for calls that were tried without."""
        is_open = wiring.arguments.all_masks and wiring.mask.shape == "absent"
        return self._list_forms() if is_open else [wiring.mask]


def _read_order(target: Target) -> str:
    """Return the order in which code takes a fused projection apart, such as "qkv", or ""."""
    orders = {"".join(found) for found in _ORDER.findall(target.text)}
    return orders.pop() if len(orders) == 1 else ""


def _find_doubt(equal: Sequence[Wiring]) -> str:
    """Return what names leave open of a call, of which several gave values as right as each other, or "".

    Numbers say an order, as those of w1 and w2 do.
    """
    first, order = equal[0].naming, _read_order(equal[0].target)
    if any(wiring.arguments.call != equal[0].arguments.call for wiring in equal):
        return "nothing says which argument of its call is which"
    orders = {wiring.naming.order for wiring in equal} - {"", "kv"}
    if len(orders) > 1 and order not in orders:
        return "nothing says in which order it fuses queries, keys and values"
    namings = [wiring.naming.names for wiring in equal if wiring.naming.names.keys() == first.names.keys()]
    differ = {str(path) for names in namings for ours, path in first.names.items() if names[ours] != path}
    unsaid = sorted(path for path in differ if not re.search(r"\d", path))
    return f"nothing says which of its parameters is which: {', '.join(unsaid)}" if unsaid else ""


def _is_exact(judgement: Judgement) -> bool:
    """Return True if a case passes with the digits of its dtype."""
    return not judgement.verdict.bad and judgement.verdict.reason != "precision"


def _is_same_naming(one: Wiring, other: Wiring) -> bool:
    """Return True if two wirings give the same parameters and inputs the same names."""
    return (one.naming.names, one.naming.per_head, one.arguments, one.component) == (
        other.naming.names, other.naming.per_head, other.arguments, other.component,
    )  # fmt: skip


def _list_calls(case: Case) -> tuple[int, ...]:
    """Return the numbers of tokens of the calls of a session."""
    calls = case.attributes["calls"]
    return calls if isinstance(calls, tuple) else ()


def _gives_twice(case: Case) -> bool:
    """Return True for a session in which two calls continue one state."""
    given = case.attributes.get("after")
    after = [number for number in given if number] if isinstance(given, tuple) else []
    return len({*after}) < len(after)


def _change_token(array: Array, place: int = -1) -> Array:
    """Return a copy of an input with another token in one place, the last one by default."""
    changed = np.array(array)
    if changed.dtype.kind == "i":
        changed[..., place] = (changed[..., place] + 1) % 2
    else:
        changed[..., place, :] = changed[..., place, ::-1] + 1
    return changed


def _may_decide(case: Case) -> bool:
    random = case.random or "dropout_rate" in case.attributes
    return case.size <= _HUGE and not (case.error or case.cotangent or case.shape_only or random or case.full_size)


def _has_odd_width(case: Case) -> bool:
    """Return True if an input has an odd number of channels, for which no pairs of sines and cosines exist."""
    return any(size % 2 for name, size in case.sizes.items() if name in ("d_model", "d_input", "d_query"))


def _is_masked(case: Case) -> bool:
    return any(name.endswith("mask") for name in case.inputs)
