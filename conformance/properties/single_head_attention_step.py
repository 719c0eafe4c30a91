"""Properties of the training steps of single-head self-attention."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from goldformer.conformance.judging.gradient import invoke_gradient
from goldformer.conformance.judging.invoke import Arguments, NotImplementedHere
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject

ATTENTION = "single_head_attention"

SEQ, WIDTH, SEED = st.integers(2, 5), st.integers(1, 4), st.integers(0, 999)
RATE = 0.125


def draw_call(subject: Subject, seed: int, seq: int, d_model: int, *, causal: bool, steps: int) -> Arguments:
    """Draw a call with one sequence, a gradient of its output, and weights."""
    sizes = {"seq": seq, "d_model": d_model}
    return subject.draw(sizes, seed, causal=causal, learning_rate=RATE, steps=steps)


@holds("shas-gradient", seq=SEQ, d_model=WIDTH, causal=st.booleans(), seed=SEED)
def a_step_goes_against_the_gradient(subject: Subject, seq: int, d_model: int, *, causal: bool, seed: int) -> None:
    """Require that one step goes against the gradients that the implementation gives for the attention itself."""
    arguments = draw_call(subject, seed, seq, d_model, causal=causal, steps=1)
    bench, contract = subject.bench, subject.bench.spec.contracts[ATTENTION]
    forward = Arguments({"x": arguments.inputs["x"]}, arguments.params, {"causal": causal})
    wanted = {"x": contract.inputs["x"], **contract.params}
    cotangent = arguments.inputs["output_gradient"]
    gradients = invoke_gradient(bench.adapter, contract, forward, cotangent, wanted, bench.dtype, bench.device).outputs
    expected = {name: weight - RATE * gradients[name] for name, weight in arguments.params.items()}
    bounds = subject.tolerances(arguments)
    for name, stepped in subject.call(arguments).items():
        less = f"is not the weight less learning_rate times its gradient by {ATTENTION}"
        claim = f"{name} {less if name in expected else f'is not the gradient of x by {ATTENTION}'}"
        subject.agree(stepped, expected.get(name, gradients["x"]), bounds[name], claim, name)


@holds("shas-one-by-one", seq=SEQ, d_model=WIDTH, causal=st.booleans(), steps=st.integers(2, 4), seed=SEED)
def steps_add_up(subject: Subject, seq: int, d_model: int, *, causal: bool, steps: int, seed: int) -> None:
    """Require that several steps in one call give the same as that many calls of one step."""
    arguments = draw_call(subject, seed, seq, d_model, causal=causal, steps=steps)
    together = subject.call(arguments)
    if absent := [name for name in arguments.params if name not in together]:
        raise NotImplementedHere(f"{subject.bench.adapter.name} does not return {', '.join(absent)}")
    single = replace(arguments, attributes={**arguments.attributes, "steps": 1})
    last = together
    for _ in range(steps):
        last = subject.call(single)
        single = replace(single, params={name: last[name] for name in single.params})
    bounds = subject.tolerances(arguments)
    for name in together:
        claim = f"{steps} steps in one call give another {name} than {steps} calls of one step"
        subject.agree(together[name], last[name], bounds[name], claim, name)
