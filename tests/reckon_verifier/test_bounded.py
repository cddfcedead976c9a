"""No answer hangs, crashes, fills memory or runs: on any thread, in pools, in an event loop."""

import concurrent.futures
import multiprocessing
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

from bench.verifier.hostile import WAYS
from lib.prompts import prompt_format
from lib.rewards.rollout import Rollout
from reckon_verifier import (
    compare,
    counters,
    equivalence,
    extract_answer,
    is_equivalent,
    reset_counters,
    symbolic,
)
from reckon_verifier.tree import MAX_REMEMBERED_CHARS, forget
from tests.conftest import ROOT, run_python

HOSTILE = {
    "tower": "9^{9^{9^9}}",
    "python tower": "9**9**9**9",
    "towers in a quotient": r"\dfrac{7^{7^{7^{7}}} - 5}{16}",
    "large power": "3^{999999999}",
    "irrational power": r"(2)^{\tan(1)^{99}}",
    "negative irrational power": r"(2)^{\tan(2)^{99}}",
    "negative power of a decimal": "0.1^{-99999999999}",
    "symbol in a tower": "x^{x^{x^{x}}}",
    "iterated factorial": "((9!)!)!",
    "gamma": r"\Gamma(10^{9})",
    "exponentials": "e^{e^{e^{e^{10}}}}",
    "sum": r"\sum_{k=1}^{10^{12}} k^{k}",
    "integral": r"\int_0^\infty \frac{\sin(x^x)}{x^{x^x}} dx",
    "radicals": r"\sqrt{2+" * 12 + "1" + "}" * 12,
    "polynomial": r"\frac{(x+1)^{900}-(x-1)^{900}}{x}",
    "plus or minus": r"\pm" * 200 + "1",
    "braces": "{" * 20_000 + "2" + "}" * 20_000,
    "fractions": r"\frac{1}{" * 400 + "2" + "}" * 400,
    "digits": "1" * 10**6,
    "decimals": "0." + "1" * 10**5,
    "letters": "x" * 10**5,
    "list": ",".join(["1"] * 10**5),
    "thousands": "1" + ",111" * 20_000,
    "fewer thousands": "1" + ",111" * 100,
    "equals": "=" * 10**5,
    "dollars": "$" * 50_000,
    "nested text": r"\text{" * 2000 + "a" + "}" * 2000,
    "parentheses": "(" * 3000 + "1" + ")" * 3000,
    "backslashes": "\\" * 20_000,
    "minus signs": "-" * 3999 + "1",
    "binomial": r"\binom{10^9}{5 \cdot 10^8}",
    "lcm": r"\operatorname{lcm}(10^{300}, 10^{299}+1, 7^{300})",
    "deep function": r"\sin(" * 50 + "1" + ")" * 50,
    "bare command": r"\frac",
    "unclosed": r"\left(1,2",
    "set": r"\{" + ",".join(map(str, range(3000))) + r"\}",
    "set of roots": r"\{" + ",".join(rf"\sqrt{{{n}}}" for n in range(2, 292)) + r"\}",
    "spaces": "1" + " " * 10**5 + "1",
    "open formulas": r"\(" * 50_000,
    "open dollars": "$a" * 50_001,
    "final": "final answer is " * 20_000,
    "joined formulas": "$x$ and " * 20_000 + "$y$",
    "boxes": r"\boxed{" * 20_000,
    "product of sums": r"(x_1+x_2)(x_3+x_4)" * 60,
    "phrases": "so " * 400 + "7",
    "matrices": r"\begin{pmatrix}1&1\\1&1\end{pmatrix}" * 30,
    "multiples of a matrix": "2(" * 30 + r"\begin{pmatrix}1\\1\end{pmatrix}" + ")" * 30,
    "applications": "A(" * 40 + "1" + ")" * 40,
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_answer_is_wrong_not_deadly(name):
    reset_counters()
    assert not is_equivalent(reference="7", answer=HOSTILE[name])
    assert not is_equivalent(reference=r"\frac{x}{2}", answer=HOSTILE[name])
    assert counters()["timeouts"] == counters()["failures"] == 0


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_text_hides_no_boxed_answer_that_follows_it(name):
    extract_answer(f"Let me think. {HOSTILE[name]}")
    answer = extract_answer(f"{HOSTILE[name]} so " + r"\boxed{42}")
    # An unclosed box holds the rest of the text.
    assert answer == "42" or name == "boxes"


LOOPS = {
    "boxes with prose": r"we get \boxed{so the answer is ",
    "closed boxes": r"\boxed{7} and ",
    "backslashes": "\\\\",
    "dots": r"7 \ldotp",
    "announcements": "the answer is ",
    "tags": "</think> <answer>7</answer>",
    "formulas": r"\(a\) and ",
    "fractions": r"\frac{1}{",
    "words": "word ",
}
"""Texts repeated without end by a small model."""


def cpu_s(text: str) -> float:
    start = time.process_time()
    compare(reference="7 apples", answer=extract_answer(text))
    compare(reference=r"\frac{x}{2}", answer=text, problem="How many cm? (A) 7 (B) 8 (C) 9 (D) 1")
    form = prompt_format("r1_zero")
    assert not Rollout(completion=text, reference="8", prompt_format=form).strict_ok
    return time.process_time() - start


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("name", sorted(LOOPS))
def test_a_loop_of_a_megabyte_costs_at_most_a_second(name):
    text = LOOPS[name] * (10**6 // len(LOOPS[name]))
    assert max(cpu_s(text), cpu_s(rf"{text} \boxed{{42}}")) < 3  # three calls


def test_caches_are_bounded_by_the_size_of_what_they_hold():
    for number in range(200):
        compare(reference="7", answer=f"{number} {'so it is said, ' * 2_000}")
    entries = equivalence._compare.cache_info().currsize
    assert entries * 15 * 2_000 <= 10 * MAX_REMEMBERED_CHARS


def test_memory_stays_small_on_all_hostile_answers():
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20));"
        "from tests.reckon_verifier.test_bounded import HOSTILE;"
        "from reckon_verifier import compare;"
        "print(sum(compare(reference='7', answer=text).equal for text in HOSTILE.values()))"
    )
    assert run_python(script).stdout.strip() == "0"


CANARY = "canary-of-the-verifier"
INJECTIONS = [
    f"__import__('os').system('touch {CANARY}')",
    f"(lambda: open('{CANARY}', 'w'))()",
    f"eval(\"open('{CANARY}','w')\")",
    f"exec('open(chr(99),chr(119))') or open('{CANARY}','w')",
    f"getattr(__import__('pathlib').Path('{CANARY}'),'touch')()",
    f"\\pi*0+len([open('{CANARY}','w')])",
    f"\\text{{open('{CANARY}','w')}}",
    f"\\operatorname{{open}}('{CANARY}','w')",
    f"[open('{CANARY}','w') for x in (1,)]",
    f"1 if open('{CANARY}','w') else 0",
    f"ｏｐｅｎ('{CANARY}','w')",
    f"sympify(\"open('{CANARY}','w')\")",
    f"\\int_0^1 open('{CANARY}','w') dx",
    f"\\input{{|touch {CANARY}}}",
    f"\\immediate\\write18{{touch {CANARY}}}",
    "().__class__.__base__.__subclasses__()",
    "ii.__class__",
    "exit()",
    "[exit()]",
    "print(1)",
    "__import__('time').sleep(60)",
    "breakpoint()",
]


@pytest.mark.parametrize("text", INJECTIONS)
def test_nothing_in_an_answer_is_executed(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for reference in ("0", "1", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"):
        assert not is_equivalent(reference=reference, answer=text)
    extract_answer(text)
    assert symbolic.ask("0", text)[0] is False
    assert list(tmp_path.iterdir()) == []
    assert not (ROOT / CANARY).exists()
    assert capsys.readouterr().out == ""


def asks_the_worker(number: int) -> tuple[bool, str]:
    """Compare an integral that only the symbolic worker decides, another for each number."""
    verdict = compare(reference=str(number), answer=rf"\int_0^1 {2 * number} x \, dx")
    return verdict.equal, verdict.decided_by


def test_the_worker_decides_an_integral_and_its_answer_is_kept():
    reset_counters()
    assert symbolic.ask("1/4", r"\int_0^1 x^3 dx") == (True, "symbolic")
    assert symbolic.ask("1/4", r"\int_0^1 x^3 dx") == (True, "symbolic")
    assert counters()["worker_calls"] == 1


def test_threads_share_a_worker():
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        questions = [rf"\int_0^1 {k}x dx" for k in (2, 3, 4)]
        verdicts = list(pool.map(lambda text: symbolic.ask("1", text)[0], questions))
    assert verdicts == [True, False, False]


def in_a_daemonic_pool(function: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, arguments)


@pytest.mark.parametrize(
    "call",
    [
        *(pytest.param(call, id=way) for way, call in WAYS.items()),
        pytest.param(in_a_daemonic_pool, id="daemonic pool"),
    ],
)
def test_the_worker_is_asked_however_it_is_called(call):
    # The caches would answer in the worker's place.
    reset_counters()
    forget()
    assert call(asks_the_worker, 10) == (True, "symbolic")


def test_forks_at_work_at_once_have_workers_of_their_own():
    assert asks_the_worker(1) == (True, "symbolic")
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        assert list(pool.map(asks_the_worker, (11, 12))) == [(True, "symbolic")] * 2


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("setting", "verdict"),
    [("TIMEOUT_S", "timeout"), ("PATIENCE_S", "timeout"), ("executable", "worker failure")],
)
def test_a_worker_without_an_answer_is_counted_and_replaced(monkeypatch, setting, verdict):
    """The worker computes too long, gets no core, or ends; its predecessor was killed unseen."""
    reset_counters()
    forget()
    worker = symbolic._started()
    worker.kill()
    worker.wait()
    ends_itself = setting == "executable"
    monkeypatch.setattr(*((sys, setting, "false") if ends_itself else (symbolic, setting, 1e-3)))
    assert asks_the_worker(50) == (False, verdict)
    assert counters()[f"{verdict}s".replace(" ", "_")] == 1
    monkeypatch.undo()
    assert asks_the_worker(50) == (True, "symbolic")


def test_an_interrupted_question_leaves_no_answer_for_the_next(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    assert asks_the_worker(60) == (True, "symbolic")
    worker = symbolic._started()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(worker, "stdout", types.SimpleNamespace(readline=interrupted))
        symbolic.ask("1", r"\int_0^1 x^{61} dx")
    assert symbolic.ask("1/63", r"\int_0^1 x^{62} dx") == (True, "symbolic")


def test_a_batch_that_spent_its_budget_asks_no_more(monkeypatch):
    monkeypatch.setattr(symbolic, "BUDGET_S", 1e-9)
    reset_counters()
    assert asks_the_worker(70) == (True, "symbolic")
    assert asks_the_worker(71) == (False, "over budget")
    assert counters()["over_budget"] == 1
    for number in range(symbolic.BATCH):
        compare(reference="1", answer=str(number))
    assert asks_the_worker(71) == (True, "symbolic")


def test_importing_the_verifier_loads_nothing_heavy():
    script = "import sys, reckon_verifier, lib.rewards.functions; print(sorted(sys.modules))"
    loaded = run_python(script).stdout
    for heavy in ("torch", "sympy", "mpmath", "transformers", "trl", "latex2sympy2_extended"):
        assert f"'{heavy}'" not in loaded
    assert "'fractions'" in loaded
