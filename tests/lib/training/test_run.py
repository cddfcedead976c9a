"""One procedure for every phase: skipped, whole, interrupted and resumed, or refused."""

import functools
import random
import shutil
import signal
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from peft import LoraConfig, get_peft_model

from lib.artifacts import hash_path, read_json, write_json
from lib.artifacts.completions import read_graded
from lib.artifacts.problems import write_problems
from lib.core.errors import UserError
from lib.inference.external import external_model
from lib.models.files import SELECTED, adapter_faults
from lib.models.load import add_adapter, load_merged, load_policy
from lib.models.pretrained import load_tokenizer
from lib.models.runtime import configure
from lib.models.save import save_policy
from lib.planning.inputs import input_problems
from lib.prompts import prompt_format, save_prompt, saved_system
from lib.training.phase import validation
from lib.training.phase.validation import Validator
from stages import sft
from tests.lib.training.runs import (
    CHANGES,
    StopAt,
    changed,
    curve,
    outputs_in,
    run,
    start,
    train_phase,
    write_inputs,
)
from tests.lib.training.steps import plain_grpo, plain_sft

STEPS = 8


@pytest.fixture(scope="module")
def short(smoke):
    """Set SFT to eight steps, saved and validated after every third."""
    sft = {"num_epochs": 2, "batch_size": 8, "micro_batch_size": 4, "logging_steps": 2}
    sft |= {"save_steps": 3, "keep_checkpoints": 1, "eval_steps": 3}
    return changed(smoke, {"sft": sft})


@pytest.fixture(scope="module")
def validator(sets, base, smoke, tmp_path_factory):
    folder = tmp_path_factory.mktemp("validation")
    for name, problems in sets.benchmarks.items():
        write_problems(folder / f"{name}.jsonl", problems[:4])
    return Validator(smoke, folder, init=base, base=base)


@pytest.fixture
def phase(sets, base, short, validator, tmp_path):
    """Run SFT to step `stop`, or to its end; return its folder."""

    def run(stop=None, *, params=short, folder="run", base=base):
        configure(seed=params.seed, threads=params.torch_threads)

        def build(scratch):
            trainer = plain_sft(sets.sft[:32], base, params, scratch)
            if stop is not None:
                trainer.add_callback(StopAt(stop))
            return trainer

        whole = {"stage": "sft", "params": params, "init": base, "validator": validator}
        train_phase(build, tmp_path / folder, **whole)
        return tmp_path / folder

    return run


def results(folder: Path, stage: str = "sft") -> dict[str, str]:
    """Return, by output, the model's hash or the file's text."""
    written = {key: path for key, path in vars(outputs_in(folder, stage)).items() if path.exists()}
    return {
        key: hash_path(path) if path.is_dir() else path.read_text("utf-8")
        for key, path in written.items()
    }


def assert_same_weights(one: Path, other: Path, *, base: Path):
    ours, theirs = (
        load_merged(each, base=base, dtype="float32", attention="sdpa").state_dict()
        for each in (one, other)
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_skipped_phase_hands_over_the_checkpoint_it_had(base, tmp_path, smoke, validator, capsys):
    build, params = Mock(), changed(smoke, {"sft": {"num_epochs": 0}})
    outputs = train_phase(
        build, tmp_path, stage="sft", params=params, init=base, validator=validator
    )
    build.assert_not_called()
    assert hash_path(outputs.model) == hash_path(base)
    # A stage started by hand finds the folder of an earlier run, whose adapter must not stay.
    (outputs.model / "adapter_config.json").write_text("{}")
    train_phase(build, tmp_path, stage="sft", params=params, init=base, validator=validator)
    assert hash_path(outputs.model) == hash_path(base)
    assert "sft.num_epochs is 0" in capsys.readouterr().out
    assert read_json(outputs.provenance)["skipped"] is True
    assert read_json(outputs.metrics) == {"step": 0}
    assert outputs.curve.read_text(encoding="utf-8") == "step\n"
    (columns,) = results(tmp_path)["validation_curve"].splitlines()
    assert "answer_accuracy" in columns.split(",")


def second_matrices(policy: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return an adapter's matrices that start at 0."""
    return [weight for name, weight in policy.named_parameters() if "lora_B" in name]


def test_grpo_starts_from_an_adapter_that_was_trained_before(
    base, sets, smoke, tmp_path, monkeypatch
):
    mine, lora = tmp_path / "mine", smoke.model.lora
    policy = add_adapter(load_policy(base, base=base, settings=smoke.model), lora)
    for weight in second_matrices(policy):
        torch.nn.init.constant_(weight, 0.01)
    policy.save_pretrained(mine)
    missing = next(adapter_faults(base, lora=lora))
    assert "holds no LoRA adapter" in missing
    (other,) = adapter_faults(mine, lora=lora.model_copy(update={"rank": 2 * lora.rank}))
    assert f"set model.lora.rank to it, not {2 * lora.rank}" in other

    # With an adapter the stage trains nothing.
    monkeypatch.chdir(tmp_path)
    params = changed(smoke, {"sft": {"adapter": str(mine)}})
    assert list(input_problems(params)) == []
    write_json(Path("params.yaml"), params.model_dump(mode="json"))
    shutil.copytree(base, "data/models/base")
    Path("data/models/base/system_prompt.txt").write_text("Be brief.")
    write_problems(Path("data/problems/sft.jsonl"), sets.sft)
    for name in params.validation.sets:
        write_problems(Path(f"data/problems/validation/{name}.jsonl"), sets.benchmarks["held_out"])
    sft.main(["--code=params.yaml"], standalone_mode=False)
    noted = read_json(Path("reports/provenance/sft.json"))
    assert noted["skipped"] is False and "adapter" in noted["inputs"]

    init = Path("data/models/sft")
    # Another system prompt is another checkpoint, so that DVC measures it again.
    assert saved_system(init) == "Be brief."
    trainer = plain_grpo(sets.grpo, base, smoke, tmp_path / "grpo", init=init)
    started = second_matrices(trainer.model)
    assert started
    assert all(weight.requires_grad and (weight == 0.01).all() for weight in started)


def test_an_adapters_regular_expression_is_saved_as_its_layers(base, smoke, tmp_path):
    """Unsloth, for one, names the adapted layers by one pattern."""
    mine, pattern = tmp_path / "mine", r".*\.(q_proj|v_proj)"
    config = LoraConfig(r=4, target_modules=pattern, task_type="CAUSAL_LM")
    get_peft_model(load_policy(base, base=base, settings=smoke.model), config).save_pretrained(mine)
    policy = load_policy(mine, base=base, settings=smoke.model)
    save_policy(policy, load_tokenizer(base), tmp_path / "saved")
    layers = read_json(tmp_path / "saved/adapter_config.json")["target_modules"]
    assert {layer.rpartition(".")[2] for layer in layers} == {"q_proj", "v_proj"}
    load_policy(tmp_path / "saved", base=base, settings=smoke.model)


def test_layers_that_the_model_lacks_are_one_line(base, smoke):
    model = load_policy(base, base=base, settings=smoke.model)
    for names in (("nope",), ("q_proj", "nope")):
        with pytest.raises(UserError, match=r"lora\.target_modules: .*nope"):
            add_adapter(model, smoke.model.lora.model_copy(update={"target_modules": names}))


def test_an_interrupted_phase_ends_with_the_files_of_a_whole_one(phase, base, capsys):
    whole = phase(folder="whole")
    # Logged are every second step and all saved ones.
    for name, steps in {"curve": [2, 3, 4, 6, 8], "validation_curve": [0, 3, 6, 8]}.items():
        points = curve(getattr(outputs_in(whole, "sft"), name))
        assert [int(point["step"]) for point in points] == steps

    with pytest.raises(UserError, match="resumes from step 3"):
        phase(stop=5)
    interrupted = outputs_in(whole.with_name("run"), "sft")
    assert not interrupted.model.exists()
    assert not interrupted.curve.exists()
    with pytest.raises(UserError, match="resumes from step 6"):
        phase(stop=7)
    assert "sft resumes from step 3 (" in capsys.readouterr().out
    twice = phase()
    assert "sft resumes from step 6 (" in capsys.readouterr().out
    ours, wholes = results(twice), results(whole)
    assert ours == wholes

    left = [path.name for path in (twice / "scratch/sft").iterdir()]
    assert sorted(left) == ["checkpoints", "lock", "training.log"]
    kept = twice / "scratch/sft/checkpoints" / f"checkpoint-{STEPS}"
    assert_same_weights(interrupted.model, kept, base=base)


@pytest.mark.slow
def test_a_kept_checkpoint_is_prompted_as_its_base_and_resumes(phase, sets, base, short, tmp_path):
    base = Path(shutil.copytree(base, tmp_path / "base"))
    save_prompt(base, system="Be brief.", rendering=short.prompt.rendering)
    kept = phase(base=base) / f"scratch/sft/checkpoints/checkpoint-{STEPS}"
    model = external_model(kept, base=base)
    assert (model.system, model.known_format) == ("Be brief.", prompt_format("working_out"))
    longer = changed(short, {"sft": {"num_epochs": 3}})
    trainer = plain_sft(sets.sft[:32], base, longer, tmp_path / "longer")
    trainer.train(resume_from_checkpoint=str(kept))
    steps = [entry["step"] for entry in trainer.state.log_history if "loss" in entry]
    assert (min(steps), max(steps)) == (2, STEPS * 3 // 2)


def test_completions_of_the_last_validation_are_kept(phase, monkeypatch):
    monkeypatch.setattr(validation, "MAX_ROWS", 3)
    folder = phase()
    rows = list(read_graded(folder / "validation.jsonl"))
    assert {(row.checkpoint, row.mode) for row in rows} == {("sft", "validation")}
    sets = [row.benchmark for row in rows]
    assert sets == ["held_out"] * 3 + ["harder"] * 3
    last = curve(folder / "validation.csv")[-1]
    # Three of the four measured completions are kept.
    rewards = sum(row.reward for row in rows[:3])
    assert rewards <= 4 * float(last["mean_reward"]) + 1e-9 <= rewards + 1.25


SCORES = {
    0: {0: 0.5, 3: 0.25, 6: 0.0, 8: 0.5},
    3: {0: 0.25, 3: 0.5, 6: 0.5, 8: 0.25},  # a tie goes to the earlier
    8: {0: 0.0, 3: 0.25, 6: 0.0, 8: 0.5},
}
"""By best step, the held-back set's answer accuracy by step."""


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("best", SCORES)
def test_the_best_checkpoint_is_handed_on_after_interruptions(
    best, phase, base, short, sets, validator, monkeypatch
):
    step, measure, real = 0, Validator._measure, validation.means

    def measured(self, state, model):
        nonlocal step
        step = state.global_step
        measure(self, state, model)

    # The other set's accuracies fall when these rise: a benchmark selects nothing.
    def means(rows):
        held_back = rows[0].problem == sets.sft[-1].problem
        score = SCORES[best][step]
        return real(rows) | {"answer_accuracy": score if held_back else 1 - score}

    monkeypatch.setattr(Validator, "_measure", measured)
    monkeypatch.setattr(validation, "means", means)
    monkeypatch.setattr(validator, "sets", {**validator.sets, "validation": sets.sft[-1:]})
    params = changed(short, {"sft": {"select": "best", "keep_checkpoints": 3}})

    whole = phase(folder="whole", params=params)
    if best == 3:
        for stop in (5, 7):
            with pytest.raises(UserError, match="resumes from step"):
                phase(stop=stop, params=params)
        ours, wholes = results(phase(params=params)), results(whole)
        assert ours == wholes

    outputs = outputs_in(whole, "sft")
    source = whole / f"scratch/sft/checkpoints/checkpoint-{best}" if best else base
    assert_same_weights(outputs.model, source, base=base)
    selected = {"step": best, "last_step": 8, "num_points": 4, "answer_accuracy": 0.5}
    noted = read_json(outputs.metrics).pop("selected")
    assert noted == selected | {"num_problems": 1}
    assert read_json(outputs.model / SELECTED) == {"sft": noted}


def test_without_checkpoints_an_interrupted_phase_starts_again(phase, short):
    unsaved = changed(short, {"sft": {"save_steps": 0, "keep_checkpoints": 0}})
    with pytest.raises(UserError, match=r"starts again.*sft\.save_steps"):
        phase(stop=5, params=unsaved)


def test_metrics_hold_each_columns_last_value(sets, base, tmp_path):
    """The second update on a step's rollouts logs no rewards; both steps are logged unsaved."""
    folder = write_inputs(tmp_path / "run", base, sets)
    grpo = {"max_steps": 2, "num_iterations": 2, "eval_steps": 0}
    for logging_steps, logged in ((1, ["1", "2"]), (5, ["2"])):
        grpo |= {"logging_steps": logging_steps, "save_steps": 0, "keep_checkpoints": 0}
        write_json(folder / CHANGES, {"grpo": grpo})
        run("grpo", folder)
        points = curve(folder / "curve.csv")
        assert [point["step"] for point in points] == logged
        metrics = read_json(folder / "metrics.json")
        assert metrics["step"] == 2
        for name in ("reward", "answer_accuracy", "completions/mean_length", "num_tokens"):
            assert metrics[name] == float(points[0][name]), name
        assert metrics["learning_rate"] == float(points[-1]["learning_rate"])


PHASES = {
    "sft-full": ("sft", 0, {}),
    "sft-by-length": ("sft", 8, {"group_by_length": True}),
    "grpo-full": ("grpo", 0, {}),
    "dpo-lora": ("dpo", 8, {}),
    "grpo-two-iterations": (
        "grpo",
        8,
        {"num_iterations": 2, "save_steps": 4, "curriculum": "pool"},
    ),
}
"""Stage, LoRA rank (0 for all weights), and changes of the stage's section."""


@pytest.fixture(scope="module")
def inputs_of(sets, base, smoke, tmp_path_factory):
    """Write the inputs of one of `PHASES` anew; return its stage and their folder.

    An adapter names its base by its path, so that all runs have one folder.
    """
    folder = tmp_path_factory.mktemp("phases") / "run"

    def write(name: str) -> tuple[str, Path]:
        shutil.rmtree(folder, ignore_errors=True)
        stage, rank, changes = PHASES[name]
        # An untrained policy answers nothing: a reward of repetition varies all the same.
        content = {
            "sft": {"save_steps": 5},
            "dpo": {"num_epochs": 3, "batch_size": 4, "micro_batch_size": 4, "save_steps": 2},
            "grpo": {"max_steps": 12, "save_steps": 2, "learning_rate": 0.01},
            "reward": {"extra": ["repetition"], "weights": [0.25, 1.0, 1.0], "repetition_ngram": 1},
            "model": {"lora": {**smoke.model.lora.model_dump(mode="json"), "rank": rank}},
        }
        content[stage] |= changes
        return stage, write_inputs(folder, base, sets, **content)

    return write


@pytest.fixture(scope="module")
def whole(inputs_of):
    """Return the results of an undisturbed run of one of `PHASES`."""

    @functools.cache
    def train(name: str) -> dict[str, str]:
        stage, folder = inputs_of(name)
        run(stage, folder)
        written = results(folder, stage)
        assert written["model"] != hash_path(folder / "base")
        if stage == "grpo":
            assert any(float(point["grad_norm"]) > 0 for point in curve(folder / "curve.csv"))
            assert len(written["rollouts"].splitlines()) > 12
        return written

    return train


SIGNALS = [(name, signal.SIGTERM) for name in PHASES]
SIGNALS += [("dpo-lora", signal.SIGINT), ("dpo-lora", signal.SIGUSR1)]


class EndBy(StopAt):
    """Send this process a signal at a step; end two steps later what goes on, as by Ctrl-C."""

    def __init__(self, number: int, step: int):
        super().__init__(step + 2)
        self.number, self.sent_at = number, step

    def on_step_begin(self, args, state, control, **kwargs):
        super().on_step_begin(args, state, control, **kwargs)
        if state.global_step == self.sent_at:
            signal.raise_signal(self.number)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), SIGNALS)
def test_a_signal_changes_nothing_in_the_end(name, number, inputs_of, whole):
    expected, before = whole(name), signal.getsignal(number)
    stage, folder = inputs_of(name)
    with pytest.raises(UserError, match="resumes from step"):
        run(stage, folder, callbacks=[EndBy(number, 5)])
    assert signal.getsignal(number) == before
    run(stage, folder)
    assert results(folder, stage) == expected


def training_log(folder: Path, stage: str) -> str:
    log = folder / "scratch" / stage / "training.log"
    return log.read_text(encoding="utf-8") if log.exists() else ""


@pytest.mark.slow
@pytest.mark.parametrize("name", PHASES)
def test_sigkill_at_random_moments_changes_nothing_in_the_end(name, inputs_of, whole, in_root):
    expected, (stage, folder) = whole(name), inputs_of(name)
    log = folder / "output"
    # Moments are counted in steps and spins of this loop, not in seconds.
    chance = random.Random(name)
    for steps in (6, chance.randrange(3), chance.randrange(1, 4)):
        process = start(run, stage, folder, log=log)
        logged = training_log(folder, stage).count("loss=") + steps
        while training_log(folder, stage).count("loss=") < logged and process.is_alive():
            time.sleep(0.02)  # the process has its share of two cores
        for _ in range(chance.randrange(6_000)):
            if not process.is_alive():
                break
        process.kill()
        process.join()
    process = start(run, stage, folder, log=log)
    process.join()
    assert process.exitcode == 0, log.read_text()
    assert results(folder, stage) == expected
    assert "resumes from step" in training_log(folder, stage)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("precision", "supported", "warns"),
    [("bf16", False, True), ("bf16", True, False), ("fp32", False, False)],
)
def test_a_cpu_that_emulates_bfloat16_is_named_before_the_first_step(
    precision, supported, warns, phase, short, capsys, monkeypatch
):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported, raising=False
    )
    with pytest.raises(UserError, match="was interrupted"):
        phase(1, params=changed(short, {"model": {"mixed_precision": precision}}))
    assert ("model.mixed_precision: fp32" in capsys.readouterr().out) is warns
