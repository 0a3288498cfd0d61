"""A land that nobody knows -> documents about it, and questions that take two of them to answer.

Towns, rivers, mountains, people, companies, schools and books, all of them invented, so that no model has read of them.
Each has one document, which names the things it is bound to and tells nothing else about them: of the two facts that a
question asks for, the second never stands in the document of the first.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

_STARTS = (
    "Bel",
    "Cor",
    "Dra",
    "Fen",
    "Gal",
    "Hol",
    "Ist",
    "Kar",
    "Lum",
    "Mor",
    "Nev",
    "Orr",
    "Pel",
    "Rus",
    "Sel",
    "Tal",
)
_MIDDLES = ("a", "e", "i", "o", "u", "an", "el", "ir", "ov", "und")
_ENDS = {
    "town": ("burg", "haven", "mora", "stead", "wick", "dale"),
    "river": ("a", "enne", "ish", "ow"),
    "mountain": ("horn", "spitz", "tor", "fell"),
    "family": ("din", "kov", "lander", "mund", "ris", "tann", "vik", "zer"),
    "company": ("on", "ex", "ora", "tec"),
}
_FIRST = ("Ada", "Bruno", "Clara", "Dario", "Edda", "Falk", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Lars", "Mila")
_WORK = ("composer", "engineer", "botanist", "painter", "astronomer", "baker", "cartographer", "physician")
_GOODS = ("clocks", "bicycles", "lamps", "pianos", "ropes", "kettles", "maps", "sails", "lenses", "carpets")
_THINGS = ("Lantern", "Orchard", "Ferry", "Winter", "Garden", "Bridge", "Letter", "Harbour", "Mirror", "Clock")
_COUNTS = {"town": 60, "river": 25, "mountain": 20, "person": 150, "company": 60, "school": 25, "book": 60}

QUESTIONS = (
    ("company", "founder", "birthplace", "In which town was the founder of {} born?"),
    ("company", "founder", "school", "At which school did the founder of {} study?"),
    ("company", "seat", "river", "On which river lies the town in which {} has its seat?"),
    ("book", "author", "birthplace", "In which town was the author of {} born?"),
    ("book", "author", "work", "What is the profession of the author of {}?"),
    ("book", "setting", "river", "On which river lies the town in which {} is set?"),
    ("school", "town", "mayor", "Who is the mayor of the town in which {} lies?"),
    ("person", "birthplace", "river", "On which river lies the town in which {} was born?"),
    ("person", "school", "town", "In which town lies the school at which {} studied?"),
    ("town", "river", "source", "In which mountain rises the river on which {} lies?"),
    ("river", "source", "climber", "Who was the first to climb the mountain in which the {} rises?"),
)
"""Kind of the thing that is named, the fact that leads on, the fact that is asked for, the question."""


@dataclass(frozen=True, slots=True)
class Thing:
    """One thing of the land: its facts by name, each of them another thing's name, or a word."""

    name: str
    kind: str
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Question:
    """A question about `start`; the answer is a fact of `bridge`, which is a fact of `start`."""

    text: str
    start: str
    bridge: str
    answer: str


def make_land(seed: int = 0) -> dict[str, Thing]:
    """All things by name, always the same for a seed."""
    rng = random.Random(seed)
    names = _names(rng)
    things: dict[str, Thing] = {}
    for kind in _COUNTS:
        for name in names[kind]:
            facts = {fact: rng.choice(names[of]) for fact, of in _BONDS[kind].items()}
            facts |= {fact: str(rng.choice(words)) for fact, words in _WORDS.get(kind, {}).items()}
            things[name] = Thing(name, kind, facts)
    return things


def document(thing: Thing) -> str:
    """What there is to read about a thing."""
    return _TEXTS[thing.kind].format(name=thing.name, **thing.facts)


def questions(land: Mapping[str, Thing]) -> list[Question]:
    """All questions that the land has an answer to, in the order of QUESTIONS."""
    return [
        Question(text.format(thing.name), thing.name, thing.facts[leads], land[thing.facts[leads]].facts[asked])
        for kind, leads, asked, text in QUESTIONS
        for thing in land.values()
        if thing.kind == kind
    ]


_BONDS: Mapping[str, Mapping[str, str]] = {
    "town": {"river": "river", "mayor": "person"},
    "river": {"source": "mountain"},
    "mountain": {"climber": "person"},
    "person": {"birthplace": "town", "school": "school"},
    "company": {"founder": "person", "seat": "town"},
    "school": {"town": "town"},
    "book": {"author": "person", "setting": "town"},
}
_WORDS: Mapping[str, Mapping[str, tuple[str, ...] | range]] = {
    "town": {"people": range(2_000, 90_000), "goods": _GOODS},
    "river": {"length": range(20, 400)},
    "mountain": {"height": range(900, 4_800), "year": range(1800, 1930)},
    "person": {"work": _WORK, "year": range(1890, 1990)},
    "company": {"goods": _GOODS, "year": range(1900, 2015)},
    "school": {"students": range(100, 9_000)},
    "book": {"pages": range(90, 700), "year": range(1920, 2020)},
}
_TEXTS = {
    "town": "{name} is a town of {people} people on the river {river}, known for its {goods}. Its mayor is {mayor}.",
    "river": "The {name} is a river. It rises in the mountain {source} and is {length} kilometres long.",
    "mountain": "{name} is a mountain of {height} metres. {climber} was the first to climb it, in {year}.",
    "person": "{name} is a {work}, was born in {birthplace} in {year} and studied at {school}.",
    "company": "{name} makes {goods}. It was founded by {founder} in {year} and has its seat in {seat}.",
    "school": "{name} is a school with {students} students. It lies in {town}.",
    "book": "{name} is a novel of {pages} pages by {author}, published in {year}. It is set in {setting}.",
}


def _names(rng: random.Random) -> dict[str, list[str]]:
    """Names of every kind, no two alike."""
    taken: set[str] = set()

    def invented(ends: tuple[str, ...]) -> str:
        while (name := rng.choice(_STARTS) + rng.choice(_MIDDLES) + rng.choice(ends)) in taken:
            pass
        taken.add(name)
        return name

    names = {kind: [invented(_ENDS[kind]) for _ in range(_COUNTS[kind])] for kind in ("town", "river", "mountain")}
    families = [invented(_ENDS["family"]) for _ in range(_COUNTS["person"])]
    names["person"] = [f"{rng.choice(_FIRST)} {family}" for family in families]
    names["company"] = [f"{invented(_ENDS['company'])} Works" for _ in range(_COUNTS["company"])]
    names["school"] = [f"{invented(_ENDS['family'])} Academy" for _ in range(_COUNTS["school"])]
    titles = [f"The {one} and the {other}" for one in _THINGS for other in _THINGS if one != other]
    names["book"] = rng.sample(titles, _COUNTS["book"])
    return names
