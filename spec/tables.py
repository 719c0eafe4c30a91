"""The tables of the spec: documents, errata, conventions, families, mistakes and properties, and their clauses.

Each class is both the schema of an entry and the frozen object that the program uses. Unknown keys are refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Annotated, Final, Literal, SupportsFloat, TypeVar
from urllib.parse import quote

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from goldformer.spec.errors import SpecError
from goldformer.spec.strict import ClauseId, Id, Items, Location, Name, Option, StrictModel, TableEntry, Text
from goldformer.spec.yamlfile import Field as Where
from goldformer.spec.yamlfile import YamlFile

# ── clauses, which clauses.py reads from the texts of the editions ──


#: The smallest number that float32 holds with all of its digits, 2⁻¹²⁶.
_SMALLEST: Final = 2.0**-126


class Level(Enum):
    """The bindingness of a clause."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    CONVENTION = "CONVENTION"


class Citation(StrictModel):
    """A document with the rows (for the paper: sections) that say so; `this spec` has no rows."""

    document: Id
    rows: Annotated[Items[str], Field(min_length=1)]

    def __str__(self) -> str:
        return " ".join((self.document, *self.rows))


@dataclass(frozen=True, slots=True)
class Clause:
    """A numbered sentence of the text of an edition."""

    id: str
    edition: str
    level: Level
    title: str
    text: str
    sources: tuple[Citation, ...]
    place: Location

    @property
    def demands_refusal(self) -> bool:
        """True if the clause asks for a refusal, which it does in the words that transformer.md sets."""
        return re.search(r"\b(is|are) an error\b", self.text) is not None

    @property
    def words(self) -> str:
        """The text without its formulas, which not everything that shows HTML can draw."""
        return re.sub(r"\s*\$\$.*?\$\$", "", self.text, flags=re.DOTALL)


def name_texts(clauses: Mapping[str, Clause] | None) -> str:
    """Return the names of the texts that hold these clauses, as the home of their ids; None stands for no clause."""
    return " or ".join(dict.fromkeys(clause.place.file.name for clause in (clauses or {}).values()))


# ── the entries of documents.yaml, errata.yaml, conventions.yaml, families.yaml, mistakes.yaml and properties.yaml ──


class DocumentRow(TableEntry):
    """One fact that a document defines."""

    id: Annotated[str, Field(pattern=r"^[A-Z][0-9]+$")]
    section: Text
    says: Text


#: Of an author, an address or a date that the copy which was read does not name.
NOT_STATED = "not stated"


class Document(TableEntry):
    """One of the source documents."""

    id: Id
    title: Text
    english: Text
    kind: Literal["article", "paper"]
    about: Text
    author: Text = NOT_STATED
    address: Text = NOT_STATED
    date: Text = NOT_STATED
    rows: Items[DocumentRow]

    @property
    def origin(self) -> str:
        """Its author, address and date."""
        return f"Author: {self.author}. Address: {self.address}. Date: {self.date}."


class Digits(StrictModel):
    """The places of a case's printed output whose digits are wrong in the document."""

    case: Id
    output: Name
    indices: Items[Items[int]]


class Erratum(TableEntry):
    """A wrong statement of a document, with the cases and properties that prove it wrong.

    With `raises`, code that follows it raises in the cases that prove it, and gives no wrong numbers. `mistakes` are
    those of the catalogue that code makes which follows it. `code` is what it prints where that is not valid Python, or
    else words of the error that it raises.
    """

    id: Id
    document: Id
    rows: Items[str]
    section: Text
    printed: Text
    correct: Text
    why: Text
    clauses: Annotated[Items[ClauseId], Field(min_length=1)]
    proof: Annotated[Items[Id], Field(min_length=1)]
    raises: bool = False
    code: Text | None = None
    mistakes: Items[Id] = ()
    digits: Items[Digits] = ()


class Convention(TableEntry):
    """A choice that real, correct code makes differently.

    With `left_open` an adapter may declare it UNSPECIFIED: what depends on it is not compared. The text says for whom.
    One that matters `on_some_inputs` changes nothing for the others: a case that is silent on it holds for all options.
    With `number` any number is an option too; the text says which.
    """

    id: Name
    title: Text
    clause: ClauseId
    default: Option
    options: Annotated[dict[Option, Text], Field(min_length=2)]
    left_open: Text | None = None
    on_some_inputs: bool = False
    number: Text | None = None

    def read_option(self, declared: object) -> str | None:
        """Return the option that is declared, a number in its shortest form; None if there is no such option."""
        if isinstance(declared, str) and declared in self.options:
            return declared
        return write_number(declared) if self.number else None


def write_number(declared: object) -> str | None:
    """Return a number between 0 and 1, such as an eps, in its shortest form, as 3e-6; None if it is something else."""
    if isinstance(declared, bool) or not isinstance(declared, str | SupportsFloat):
        return None
    try:
        value = float(declared)
    except (ValueError, OverflowError):
        return None
    return f"{Decimal(repr(value)).normalize():e}" if _SMALLEST <= value < 1 else None


_LINK: Final = r"^[\w.-]+/[\w.-]+(#\d+|:\S+)?( \([^()]+\))?$"


def _check_link(text: str) -> str:
    if not re.fullmatch(_LINK, text):
        forms = "owner/name#12 (a thread), owner/name:path (a file) or owner/name"
        raise PydanticCustomError("place", f"should be {forms}, with nothing after it but a note in parentheses")
    return text


def find_address(place: str) -> str:
    """Return the address of a place at which a mistake was seen: a thread, a file, or a repository."""
    where = place.partition(" ")[0]
    repository, _, path = where.partition(":")
    if path:
        return f"https://github.com/{repository}/blob/HEAD/{quote(path)}"
    repository, _, thread = where.partition("#")
    # GitHub redirects the address of an issue to the pull request of that number.
    return f"https://github.com/{repository}" + (f"/issues/{thread}" if thread else "")


#: A repository, a thread in it or a file of it, and a note about that: owner/name#12 (claimed).
Link = Annotated[str, AfterValidator(_check_link), Field(json_schema_extra={"pattern": _LINK})]


class Family(TableEntry):
    """A model that people name, such as Llama 3: the components that it has, and its options of their conventions.

    The first option of a convention is that of the family; golden values are stored for the others too, which usual
    code of it has. A convention that it does not name has its default. `sources` are the files that say so.
    """

    id: Id
    title: Text
    components: Annotated[Items[Name], Field(min_length=1)]
    options: dict[Name, Annotated[Items[Option], Field(min_length=1)]]
    sources: Annotated[Items[Link], Field(min_length=1)]

    @property
    def own(self) -> dict[str, str]:
        """Its option of each convention that it names."""
        return {name: options[0] for name, options in self.options.items()}

    def choose(self, declared: Mapping[str, str]) -> dict[str, str]:
        """Return its options, after those among the declared ones that it has too; keys may name a component."""
        kept = {key: option for key, option in declared.items() if self._allows(key.rpartition(".")[2], option)}
        return self.own | kept

    def _allows(self, name: str, option: str) -> bool:
        return name not in self.options or option in self.options[name]


#: Wrong code, perhaps in two ways, for right code, and what may follow.
_WRITTEN_FOR: Final = re.compile(r"`([^`]+)`(?:,? or `[^`]+`)?,? for `([^`]+)`")


class Mistake(TableEntry):
    """A named mistake that people really make.

    `title` describes it in a phrase, `does` the wrong code, `symptom` its visible effect, `why` the reason why it is
    wrong, `hint` the fix; `reveals` is the smallest input that shows it, `hides` are inputs that do not, and `seen`
    are public places where it was made or discussed, as owner/name#thread. `error` are words of an error that only
    this mistake raises, `possible_error` those of one that it shares with others.
    """

    id: Id
    component: Name
    title: Text
    does: Text
    symptom: Text
    why: Text
    hint: Text
    reveals: Text
    hides: Text
    error: Text | None = None
    possible_error: Text | None = None
    seen: Items[Link] = ()

    @property
    def code(self) -> tuple[str, str] | None:
        """The wrong code and the right code, if `does` has them as "`wrong` for `right`"; None for other words."""
        found = _WRITTEN_FOR.match(self.does)
        return (found[1], found[2]) if found else None


#: The settings that a result must not depend on.
Setting = Literal["batch size", "padding", "memory layout", "threads"]


class Property(TableEntry):
    """A relation that holds for every input; the suite draws the inputs. Component "*" means every one.

    `catches` are mistakes that it shows. `settings` are those in which it compares a call with itself.
    """

    id: Id
    component: Name | Literal["*"]
    title: Text
    clauses: Annotated[Items[ClauseId], Field(min_length=1)]
    settings: Items[Setting] = ()
    catches: Items[Id] = ()
    needs: Items[Name] = ()


# ── the files ──


class DocumentsFile(StrictModel):
    """The schema of documents.yaml."""

    documents: Items[Document]


class ErrataFile(StrictModel):
    """The schema of errata.yaml."""

    errata: Items[Erratum]


class ConventionsFile(StrictModel):
    """The schema of conventions.yaml."""

    conventions: Items[Convention]


class FamiliesFile(StrictModel):
    """The schema of families.yaml."""

    families: Items[Family]


class MistakesFile(StrictModel):
    """The schema of mistakes.yaml."""

    mistakes: Items[Mistake]


class PropertiesFile(StrictModel):
    """The schema of properties.yaml."""

    properties: Items[Property]


AnyEntry = TypeVar("AnyEntry", Document, Erratum, Convention, Family, Mistake, Property)


def _index_entries(file: YamlFile, group: str, entries: Iterable[AnyEntry]) -> dict[str, AnyEntry]:
    """Return the entries by their ids, each with its place; SpecError if an id is taken."""
    found: dict[str, AnyEntry] = {}
    for index, entry in enumerate(entries):
        where = (group, index, "id")
        if entry.id in found:
            raise SpecError([file.problem(where, f"{entry.id!r} is taken")])
        entry.set_place(file.locate(where))
        found[entry.id] = entry
    return found


def _check_names(file: YamlFile, where: Where, names: Iterable[str], known: Collection[str] | None, home: str) -> None:
    """Raise SpecError for the first name that is not known; None means that the names are not checked."""
    unknown = [] if known is None else [name for name in names if name not in known]
    if unknown:
        raise SpecError([file.problem(where, f"{unknown[0]!r} is not in {home}")])


def read_documents(file: YamlFile) -> dict[str, Document]:
    """Read documents.yaml."""
    documents = _index_entries(file, "documents", file.parse(DocumentsFile).documents)
    for index, document in enumerate(documents.values()):
        where: Where = ("documents", index, "rows")
        if len({row.id for row in document.rows}) < len(document.rows):
            raise SpecError([file.problem(where, "has a row id twice")])
        for i, row in enumerate(document.rows):
            row.set_place(file.locate((*where, i, "id")))
    return documents


def read_conventions(file: YamlFile, clauses: Mapping[str, Clause] | None) -> dict[str, Convention]:
    """Read conventions.yaml."""
    conventions = _index_entries(file, "conventions", file.parse(ConventionsFile).conventions)
    texts = name_texts(clauses)
    for index, convention in enumerate(conventions.values()):
        where: Where = ("conventions", index)
        _check_names(file, (*where, "clause"), [convention.clause], clauses, texts)
        _check_names(file, (*where, "default"), [convention.default], convention.options, "its options")
        if convention.default != (first := next(iter(convention.options))):
            message = f"is {convention.default!r}, but {first!r} stands first: write the default option first"
            raise SpecError([file.problem((*where, "default"), message)])
    return conventions


def read_families(
    file: YamlFile, contracts: Collection[str], conventions: Mapping[str, Convention]
) -> dict[str, Family]:
    """Read families.yaml."""
    families = _index_entries(file, "families", file.parse(FamiliesFile).families)
    for index, family in enumerate(families.values()):
        where: Where = ("families", index)
        _check_names(file, (*where, "components"), family.components, contracts, "contracts/")
        for name, options in family.options.items():
            inner: Where = (*where, "options", name)
            _check_names(file, inner, [name], conventions, "conventions.yaml")
            _check_names(file, inner, options, conventions[name].options, f"conventions.yaml under {name}")
    return families


def read_mistakes(file: YamlFile, contracts: Collection[str]) -> dict[str, Mistake]:
    """Read mistakes.yaml."""
    mistakes = _index_entries(file, "mistakes", file.parse(MistakesFile).mistakes)
    for index, mistake in enumerate(mistakes.values()):
        _check_names(file, ("mistakes", index, "component"), [mistake.component], contracts, "contracts/")
    return mistakes


def read_properties(
    file: YamlFile, contracts: Collection[str], clauses: Mapping[str, Clause], mistakes: Collection[str] | None
) -> dict[str, Property]:
    """Read properties.yaml."""
    properties = _index_entries(file, "properties", file.parse(PropertiesFile).properties)
    texts = name_texts(clauses)
    for index, prop in enumerate(properties.values()):
        where: Where = ("properties", index)
        _check_names(file, (*where, "component"), {prop.component} - {"*"}, contracts, "contracts/")
        _check_names(file, (*where, "needs"), prop.needs, contracts, "contracts/")
        _check_names(file, (*where, "clauses"), prop.clauses, clauses, texts)
        _check_names(file, (*where, "catches"), prop.catches, mistakes, "mistakes.yaml")
    return properties


def read_errata(
    file: YamlFile,
    documents: Mapping[str, Document],
    clauses: Mapping[str, Clause],
    mistakes: Collection[str] | None,
) -> dict[str, Erratum]:
    """Read errata.yaml."""
    errata = _index_entries(file, "errata", file.parse(ErrataFile).errata)
    texts = name_texts(clauses)
    for index, erratum in enumerate(errata.values()):
        where: Where = ("errata", index)
        _check_names(file, (*where, "document"), [erratum.document], documents, "documents.yaml")
        rows = [row.id for row in documents[erratum.document].rows]
        _check_names(file, (*where, "rows"), erratum.rows, rows, f"documents.yaml under {erratum.document}")
        _check_names(file, (*where, "clauses"), erratum.clauses, clauses, texts)
        _check_names(file, (*where, "mistakes"), erratum.mistakes, mistakes, "mistakes.yaml")
    return errata
