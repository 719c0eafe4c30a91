"""A property catches each mistake that it lists, alone and in a sentence, and every property catches something."""

import pytest

from goldformer.adapters import Adapter, find_adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property
from goldformer.spec import load_spec

SPEC = load_spec()
#: Properties of every component: the tests of devices, of several calls and of tensors hold their claims.
HELD_ELSEWHERE = {p.id for p in SPEC.properties.values() if p.component == "*"}
#: Advised alone, so that no mistake fails it; the tests of the registry have messages that depart from it.
ADVISED = "sha-message"
CLAIMS = [(p.id, mistake) for p in SPEC.properties.values() for mistake in p.catches if p.id not in HELD_ELSEWHERE]


def test_every_property_catches_a_mistake():
    assert [p.id for p in SPEC.properties.values() if not p.catches] == [ADVISED]


def test_what_is_held_elsewhere_is_so_few():
    held_here = {property_ for property_, _ in CLAIMS}
    assert {p.id for p in SPEC.properties.values()} - held_here == {*HELD_ELSEWHERE, ADVISED}


@pytest.mark.sample(15)
@pytest.mark.parametrize(("property_", "mistake"), CLAIMS)
def test_a_property_catches_what_it_claims(property_, mistake):
    prop = SPEC.properties[property_]
    adapter = Adapter.from_object(implementations()[mistake].make(), mistake, SPEC)
    verdict = check_property(prop, prop.component, Bench(SPEC, adapter, "float64", "cpu"))
    # Not a crash and not a wrong shape, which any call would show: the relation itself does not hold.
    assert (verdict.status, verdict.reason) == (Status.FAILED, "property")
    assert verdict.message


@pytest.mark.sample(5)
@pytest.mark.parametrize("property_", [id_ for id_ in SPEC.properties if id_ not in HELD_ELSEWHERE])
def test_the_textbook_without_a_mistake_keeps_a_property(property_):
    prop = SPEC.properties[property_]
    bench = Bench(SPEC, find_adapter("textbook", SPEC), "float64", "cpu")
    assert check_property(prop, prop.component, bench).status is Status.PASSED


def of_no_vocabulary(name, word):
    """The textbook, but for one word that it decodes, which is none."""
    textbook = build_textbook()

    def decode(**given):
        outputs = dict(getattr(build_textbook(), name)(**given))
        outputs["ids"] = outputs["ids"].copy()
        outputs["ids"].ravel()[0] = word
        return outputs

    setattr(textbook, name, decode)
    return textbook


@pytest.mark.sample(6)
@pytest.mark.parametrize("word", [5, -1, 1 << 62])
@pytest.mark.parametrize(
    ("name", "property_"),
    [(p.component, p.id) for p in SPEC.properties.values() if p.component in ("greedy_decode", "beam_search")],
)
def test_a_word_that_is_none_fails_what_asks_for_more_of_it(name, property_, word):
    adapter = Adapter.from_object(of_no_vocabulary(name, word), "odd", SPEC)
    verdict = check_property(SPEC.properties[property_], name, Bench(SPEC, adapter, "float64", "cpu"))
    assert (verdict.status, verdict.reason) == (Status.FAILED, "property")
