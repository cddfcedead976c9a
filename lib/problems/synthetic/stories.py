"""The sentences that generated problems are told in.

Fields in braces: `name`, `she`, `She`, `her`, `friend` (another person), `things` (what is
counted), `a` and `b` (the two numbers of a first equation), `n` (a number that follows).
A number below 2 occurs only as the `n` of "+" and "-", so those sentences put no noun after it.
"""

import dataclasses

Sentences = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Story:
    """One setting; each sentence of a kind can stand for each other one of that kind.

    Attributes:
        subject: name of the setting, the problem's `subject`.
        things: what may be counted.
        openings: say the number that the first equation starts from; a move then says the rest.
        starts: by operation, sentences that say a whole first equation at once.
        moves: by operation, sentences that change the running number by `n`.
        questions: ask for the running number.
        distractors: give a number that has no part in the answer.
    """

    subject: str
    things: Sentences
    openings: Sentences
    starts: dict[str, Sentences]
    moves: dict[str, Sentences]
    questions: Sentences
    distractors: Sentences


NAMES: tuple[tuple[str, str, str], ...] = (
    ("Amira", "she", "her"),
    ("Bruno", "he", "his"),
    ("Clara", "she", "her"),
    ("Daniel", "he", "his"),
    ("Elif", "she", "her"),
    ("Farid", "he", "his"),
    ("Greta", "she", "her"),
    ("Hugo", "he", "his"),
    ("Ines", "she", "her"),
    ("Jonas", "he", "his"),
    ("Lena", "she", "her"),
    ("Marco", "he", "his"),
)

STORIES: tuple[Story, ...] = (
    Story(
        subject="collecting",
        things=("stickers", "marbles", "shells", "stamps"),
        openings=(
            "{name} has {n} {things}.",
            "{name} starts a collection with {n} {things}.",
        ),
        starts={
            "+": (
                "{name} has {a} {things} and is given {b} more.",
                "{name} has {a} {things} and finds {b} more.",
            ),
            "-": (
                "{name} has {a} {things} and loses {b} of them.",
                "{name} has {a} {things} and gives {b} of them to {friend}.",
            ),
            "*": (
                "{name} has {a} boxes with {b} {things} in each box.",
                "{name} fills {a} pages with {b} {things} on each page.",
            ),
            "/": (
                "{a} {things} are shared equally by {b} children and {name} is one of them.",
                "{name} splits {a} {things} into {b} equal piles and keeps one pile.",
            ),
        },
        moves={
            "+": ("{She} finds {n} more.", "Then {friend} gives {name} {n} more."),
            "-": ("{She} gives {n} of them to {friend}.", "Then {she} loses {n} of them."),
            "*": (
                "By summer {she} has {n} times as many.",
                "Soon {her} collection is {n} times as large.",
            ),
            "/": (
                "{She} splits them into {n} equal piles and keeps one pile.",
                "Then {she} puts them equally into {n} bags and keeps one bag.",
            ),
        },
        questions=(
            "How many {things} does {name} have now?",
            "How many {things} are in the collection now?",
        ),
        distractors=(
            "{friend} has {n} coins.",
            "There are {n} pictures on the wall.",
        ),
    ),
    Story(
        subject="baking",
        things=("rolls", "cookies", "muffins", "pies"),
        openings=(
            "{name} bakes {n} {things}.",
            "There are {n} {things} in the kitchen of {name}.",
        ),
        starts={
            "+": (
                "{name} bakes {a} {things} and later {b} more.",
                "{name} takes {a} {things} from the oven and {friend} brings {b} more.",
            ),
            "-": (
                "{name} bakes {a} {things} and burns {b} of them.",
                "{name} bakes {a} {things} and {friend} eats {b} of them.",
            ),
            "*": (
                "{name} bakes {a} trays of {b} {things} each.",
                "{name} fills {a} plates with {b} {things} on each plate.",
            ),
            "/": (
                "{name} lays {a} {things} equally on {b} plates and takes one plate.",
                "{name} packs {a} {things} equally into {b} boxes and takes one box.",
            ),
        },
        moves={
            "+": ("{She} bakes {n} more.", "Then {friend} brings {n} more."),
            "-": ("{friend} eats {n} of them.", "Then {she} sells {n} of them."),
            "*": (
                "A large order makes it {n} times as many.",
                "By noon {she} has {n} times as many.",
            ),
            "/": (
                "{She} lays them equally on {n} plates and takes one plate.",
                "Then {she} packs them equally into {n} boxes and takes one box.",
            ),
        },
        questions=(
            "How many {things} does {name} have now?",
            "How many {things} are left for {name}?",
        ),
        distractors=(
            "The oven is {n} years old.",
            "{friend} drinks {n} cups of tea.",
        ),
    ),
    Story(
        subject="saving",
        things=("coins", "tokens"),
        openings=(
            "{name} saves {n} {things}.",
            "There are {n} {things} in the jar of {name}.",
        ),
        starts={
            "+": (
                "{name} saves {a} {things} and earns {b} more.",
                "{name} puts {a} {things} and then {b} more into a jar.",
            ),
            "-": (
                "{name} saves {a} {things} and spends {b} of them.",
                "{name} has {a} {things} and pays {b} of them for a book.",
            ),
            "*": (
                "{name} works {a} days and earns {b} {things} each day.",
                "{name} sells {a} toys for {b} {things} each.",
            ),
            "/": (
                "{name} counts {a} {things} into {b} equal heaps and takes one heap.",
                "{name} divides {a} {things} equally among {b} jars and opens one jar.",
            ),
        },
        moves={
            "+": ("{She} earns {n} more.", "Then {friend} pays {name} {n} more."),
            "-": ("{She} spends {n} of them.", "Then {she} lends {n} of them to {friend}."),
            "*": (
                "A year later {she} has {n} times as many.",
                "Then a prize makes it {n} times as many.",
            ),
            "/": (
                "{She} divides them equally among {n} jars and opens one jar.",
                "Then {she} splits them into {n} equal piles and keeps one pile.",
            ),
        },
        questions=(
            "How many {things} does {name} have now?",
            "How many {things} can {name} count now?",
        ),
        distractors=(
            "A ticket for the bus costs {n} cents.",
            "{friend} is {n} years old.",
        ),
    ),
    Story(
        subject="gardening",
        things=("beans", "bulbs", "seeds", "apples"),
        openings=(
            "{name} brings {n} {things} to the garden.",
            "There are {n} {things} in the basket of {name}.",
        ),
        starts={
            "+": (
                "{name} picks {a} {things} and then {b} more.",
                "{name} brings {a} {things} to the garden and {friend} adds {b} more.",
            ),
            "-": (
                "{name} picks {a} {things} and drops {b} of them.",
                "{name} has {a} {things} and the birds take {b} of them.",
            ),
            "*": (
                "{name} counts {a} rows of {b} {things} each.",
                "{name} fills {a} pots with {b} {things} in each pot.",
            ),
            "/": (
                "{name} spreads {a} {things} equally over {b} rows and looks at one row.",
                "{name} puts {a} {things} equally into {b} pots and takes one pot.",
            ),
        },
        moves={
            "+": ("{She} picks {n} more.", "Then {friend} adds {n} more."),
            "-": ("The birds take {n} of them.", "Then {she} drops {n} of them."),
            "*": (
                "After the rain there are {n} times as many.",
                "By summer {she} has {n} times as many.",
            ),
            "/": (
                "{She} puts them equally into {n} pots and takes one pot.",
                "Then {she} shares them equally among {n} baskets and keeps one basket.",
            ),
        },
        questions=(
            "How many {things} does {name} have now?",
            "How many {things} are left for {name}?",
        ),
        distractors=(
            "The garden is {n} steps long.",
            "There are {n} trees by the wall.",
        ),
    ),
    Story(
        subject="reading",
        things=("books", "comics", "magazines"),
        openings=(
            "{name} owns {n} {things}.",
            "There are {n} {things} on the shelf of {name}.",
        ),
        starts={
            "+": (
                "{name} owns {a} {things} and buys {b} more.",
                "{name} reads {a} {things} in spring and {b} more in summer.",
            ),
            "-": (
                "{name} owns {a} {things} and sells {b} of them.",
                "{name} takes {a} {things} home and returns {b} of them.",
            ),
            "*": (
                "{name} has {a} shelves with {b} {things} on each shelf.",
                "{name} opens {a} boxes with {b} {things} in each box.",
            ),
            "/": (
                "{name} packs {a} {things} equally into {b} boxes and takes one box.",
                "{name} sorts {a} {things} onto {b} equal shelves and reads one shelf.",
            ),
        },
        moves={
            "+": ("{She} buys {n} more.", "Then {friend} gives {name} {n} more."),
            "-": ("{She} sells {n} of them.", "Then {she} lends {n} of them to {friend}."),
            "*": (
                "A year later there are {n} times as many.",
                "Then a gift makes it {n} times as many.",
            ),
            "/": (
                "{She} packs them equally into {n} boxes and takes one box.",
                "Then {she} sorts them into {n} equal piles and keeps one pile.",
            ),
        },
        questions=(
            "How many {things} does {name} have now?",
            "How many {things} are with {name} now?",
        ),
        distractors=(
            "The library opens at {n} in the morning.",
            "{friend} has {n} pencils.",
        ),
    ),
    Story(
        subject="travelling",
        things=("people", "children", "visitors"),
        openings=(
            "{n} {things} get on the bus that {name} drives.",
            "{name} drives a bus with {n} {things}.",
        ),
        starts={
            "+": (
                "{name} drives {a} {things} and picks up {b} more.",
                "{a} {things} wait for {name} and {b} more join them.",
            ),
            "-": (
                "{name} drives {a} {things} and drops off {b} of them.",
                "{a} {things} wait for {name} and {b} of them leave.",
            ),
            "*": (
                "{name} guides {a} groups of {b} {things} each.",
                "{name} drives a bus with {a} rows of {b} {things} each.",
            ),
            "/": (
                "{a} {things} form {b} equal groups and {name} guides one group.",
                "{a} {things} share {b} buses equally and {name} drives one bus.",
            ),
        },
        moves={
            "+": ("{She} picks up {n} more.", "At the next stop {n} more get on."),
            "-": ("{She} drops off {n} of them.", "At the next stop {n} of them leave."),
            "*": (
                "At the market there are {n} times as many.",
                "On the way back {she} has {n} times as many.",
            ),
            "/": (
                "They form {n} equal groups and only one group stays.",
                "Then they share {n} buses equally and {name} drives one bus.",
            ),
        },
        questions=(
            "How many {things} are with {name} now?",
            "How many {things} does {name} drive now?",
        ),
        distractors=(
            "The road is {n} miles long.",
            "{friend} has {n} tickets.",
        ),
    ),
)
