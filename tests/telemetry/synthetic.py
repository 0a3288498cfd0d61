"""A made-up run folder, written as the steps of a pipeline write a real one."""

import json
import math
import random

from components import storage
from components.telemetry.metrics import MetricsLog
from components.telemetry.timeline import CLOSE, RESET, REWARD, STEP
from components.telemetry.tool_calls import environment_numbers

IN_NO_VERSION = ("generated", "in_flight")
HOSTILE = "<script>alert('from the model')</script>"


def write_run(folder: str, *, steps: int = 12, trajectories: int = 40, seed: int = 0) -> None:
    """Write metrics, evaluation, summary and trajectories of a run that learns."""
    chance = random.Random(seed)
    log = MetricsLog(storage.join(folder, "metrics.jsonl"))
    tokens: dict[str, int] = {}
    lines = [_line(step, steps, chance) for step in range(1, steps + 1)]
    for step, line in enumerate(lines, start=1):
        log.write(step, line)
        for fate, amount in line["tokens"].items():
            tokens[fate] = amount if fate == "in_flight" else tokens.get(fate, 0) + amount
    tokens["generated"] = sum(amount for fate, amount in tokens.items() if fate != "generated")
    storage.write_text(storage.join(folder, "evaluation.json"), json.dumps(EVALUATION))
    storage.write_text(storage.join(folder, "summary.json"), json.dumps(_summary(folder, lines, tokens)))
    talk = storage.LineLog(storage.join(folder, "trajectories.jsonl"))
    for number in range(trajectories):
        talk.append(json.dumps(_trajectory(number, trajectories, steps, chance)))
    talk.sync()


def _line(step: int, steps: int, chance: random.Random) -> dict:
    progress = 1 / (1 + math.exp(-(step / steps - 0.35) * 14))
    reward = min(1.0, max(0.0, 0.98 * progress + chance.gauss(0, 0.04 * (1.2 - progress))))
    generated = chance.randint(3000, 5200)
    failed = chance.choice([0, 0, 0, 120])
    filtered = int(generated * (0.25 if progress > 0.9 else 0.06))
    stale = chance.choice([0, 0, 64])
    return {
        "reward_mean": reward,
        "reward_std": math.sqrt(reward * (1 - reward)),
        "loss": -0.3 * reward * (1 - reward) + chance.gauss(0, 0.01),
        "gradient_norm": 0.9 * math.exp(-step / steps) + chance.random() * 0.2,
        "entropy": 1.4 * math.exp(-2 * step / steps) + 0.05,
        "reference_kl": 0.02 * step / steps + chance.random() * 0.003,
        "behavior_kl": 2e-6 * (1 + chance.random()),
        "mismatch_kl": 1e-6 * (1 + chance.random()),
        "effective_sample_size": 0.97 - 0.3 * progress * chance.random(),
        "importance_weight_max": 1.2 + 0.8 * chance.random(),
        "selection": _selection(step, steps),
        "staleness_mean": chance.random(),
        "episode_seconds": 4 + chance.random() * 2 - 2 * progress,
        "episodes": 32,
        "failures": {"tool": 1} if failed else {},
        "canary_difference": 3e-6 * (1 + chance.random()),
        "reward_parts": {"correct": reward, "format": 0.0},
        "tools": _tools(step, chance),
        "environments": {name: _environment(failed > 0, chance) for name in ("arithmetic", "search")},
        "tool_seconds": 0.4 * chance.random(),
        "tool_error_rate": 0.4 * (1 - progress),
        "tokens": {
            "generated": generated,
            "trained": generated - failed - filtered - stale,
            "stale": stale,
            "filtered": filtered,
            "failed": failed,
            "surplus": 0,
            "in_flight": 410,
        },
        "trainer_seconds": {
            "busy": 5 + chance.random(),
            "waiting for generation": 6 * (1.3 - progress) * chance.random() + 0.8,
            "waiting for tools": 0.3 * chance.random(),
            "waiting for graders": 0.2 * chance.random(),
            "compiling": 0.1,
            "weight sync": 0.2,
        }
        | ({"starting": 9.0} if step == 1 else {}),
        "engine_seconds": {
            "decode": 7 + chance.random(),
            "prefill": 1.2,
            "waiting for tools": 0.8 * chance.random(),
            "waiting for admission": 1.5 * chance.random(),
        },
    }


def _tools(step: int, chance: random.Random) -> dict:
    """Two tools, one of which is slow at times and times out."""
    slow = 4.0 if step % 7 == 3 else 0.4
    return {
        "calculator": {"calls": 40, "errors": {}, "p50": 0.001, "p95": 0.002, "p99": 0.004, "max": 0.01},
        "search": {
            "calls": 12,
            "errors": {"timeout": 1} if slow > 1 else {},
            "p50": 0.1 + 0.05 * chance.random(),
            "p95": slow,
            "p99": slow * 1.5,
            "max": slow * 2,
        },
    }


def _environment(is_broken: bool, chance: random.Random) -> dict:
    """Quick to open and to grade; what a step takes differs."""
    spent = {RESET: (-7.0, 32), STEP: (-1.0, 70), REWARD: (-4.0, 32), CLOSE: (-8.0, 32)}
    seconds = {
        phase: [chance.lognormvariate(middle, 1) for _ in range(count)] for phase, (middle, count) in spent.items()
    }
    return environment_numbers(seconds, {None: 31, "tool": 1} if is_broken else {None: 32})


def _selection(step: int, steps: int) -> dict:
    """Turns are trained as they were played; long and slow episodes less and less."""
    ratios = {"tokens": 1 - 0.2 * step / steps, "turns": 1.0, "seconds": 0.95 - 0.4 * step / steps}
    means = {"tokens": 180.0, "turns": 2.4, "seconds": 5.2}
    return {
        key: {"trained": ratio * means[key], "dispatched": means[key], "ratio": ratio} for key, ratio in ratios.items()
    }


def _by_version(lines: list[dict]) -> dict:
    """Every step's tokens were sampled by the version before it, in two environments."""
    versions = {
        str(version): {fate: amount // 2 for fate, amount in line["tokens"].items() if fate not in IN_NO_VERSION}
        for version, line in enumerate(lines)
    }
    versions[str(len(lines))] = {"in_flight": 205}
    return {"arithmetic": versions, "search": versions}


def _summary(folder: str, lines: list[dict], tokens: dict[str, int]) -> dict:
    seconds: dict[str, dict[str, float]] = {"trainer_seconds": {}, "engine_seconds": {}}
    for line in lines:
        for role, totals in seconds.items():
            for state, spent in line[role].items():
                totals[state] = totals.get(state, 0.0) + spent
    return {
        "run_dir": folder,
        "recipe": "quickstart",
        "model": "SmolLM2-135M-Instruct",
        "environment": "components.environments.arithmetic:Arithmetic",
        "objective": "J = mean over tokens of min(r A, clip(r, 1 - 0.2, 1 + 0.28) A)\nA = (R - mean(R)) / std(R)",
        "facts": {
            "seed": 0,
            "LoRA": "rank 16 on q, k, v, o, gate, up, down",
            "batch": "4 groups of 8",
            "device": "cpu, 2 cores",
        },
        "versions": {"headrace": "0.1.0", "jax": "0.10.2", "optax": "0.2.8", "python": "3.11.7"},
        "alerts": [],
        "steps": len(lines),
        "wall_seconds": 168.4,
        "peak_memory_gib": 3.41,
        "reward_before": lines[0]["reward_mean"],
        "reward_after": lines[-1]["reward_mean"],
        "accuracy_before": 0.07,
        "accuracy_after": 0.97,
        "accuracy_after_interval": [0.915, 0.990],
        "tokens": tokens,
        "tokens_by_version": _by_version(lines),
        "trainer_idle_share": 0.29,
        "engine_idle_share": 0.11,
        "report_html": storage.join(folder, "report.html"),
        "adapter_dir": storage.join(folder, "export", "adapter"),
        "merged_dir": storage.join(folder, "export", "merged"),
        **seconds,
    }


EVALUATION = {
    "measures": [
        {
            "name": "greedy accuracy on unseen problems",
            "before": {
                "value": 0.07,
                "low": 0.034,
                "high": 0.137,
                "count": 100,
                "method": "wilson",
                "confidence": 0.95,
            },
            "after": {"value": 0.97, "low": 0.915, "high": 0.990, "count": 100, "method": "wilson", "confidence": 0.95},
            "paired": {
                "difference": {"value": 0.90, "low": 0.82, "high": 0.945, "count": 100, "method": "newcombe"},
                "p_value": 1e-20,
                "better": 90,
                "worse": 0,
                "equal": 10,
            },
        },
        {
            "name": "sampled accuracy",
            "before": {"value": 0.05, "low": 0.02, "high": 0.11, "count": 100, "method": "wilson", "confidence": 0.95},
            "after": {"value": 0.955, "low": 0.90, "high": 0.98, "count": 100, "method": "wilson", "confidence": 0.95},
        },
    ]
}


def _trajectory(number: int, count: int, steps: int, chance: random.Random) -> dict:
    left, right = chance.randint(100, 999), chance.randint(100, 999)
    solved = chance.random() < number / count + 0.05
    question = f"What is {left} * {right}? Use the calculator."
    system = "You can call tools.\n\ncalculator(expression: string): the value of an arithmetic expression."
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    if solved:
        call = {"name": "calculator", "arguments": {"expression": f"{left} * {right}"}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "calculator", "content": str(left * right)},
            {"role": "assistant", "content": f"The answer is {left * right}."},
        ]
    elif number % 3:
        broken = {
            "text": '{"name": "calculator", "arguments": {"expr',
            "reason": "the JSON ends in the middle of a text",
        }
        messages += [
            {"role": "assistant", "content": "", "malformed_calls": [broken]},
            {"role": "tool", "name": "calculator", "content": "error: the JSON ends in the middle of a text"},
        ]
    else:
        messages.append({"role": "assistant", "content": f"{HOSTILE} I think it is {left * right + 10}."})
    cut = not solved and number % 3
    step = 1 + number * steps // count
    return {
        "step": step,
        "task_id": f"arithmetic-{number}",
        "reward": 1.0 if solved else 0.0,
        "reward_parts": {"correct": 1.0 if solved else 0.0, "format": 0.0},
        "outcome": "truncated" if cut else "finished",
        "cut_by": "turns" if cut else None,
        "tokens": 12,
        "seconds": round(2 + chance.random(), 3),
        "staleness": chance.choice([0, 0, 1]),
        "tool_calls": 1,
        "tool_errors": 0,
        "malformed_calls": int(bool(cut)),
        "messages": messages,
        "turns": [_turn(question, str(messages[-1]["content"] or "…"), step, chance)],
    }


def _turn(prompt: str, text: str, step: int, chance: random.Random) -> dict:
    tokens = [text[at : at + 3] for at in range(0, len(text), 3)]
    versions = [[max(0, step - 2), len(tokens) // 2], [step - 1, len(tokens) - len(tokens) // 2]]
    older = versions[0][1] if step > 1 else 0
    return {
        "gaps": [round(chance.gauss(0, 0.2 if at < older else 0.002), 5) for at in range(len(tokens))],
        "prompt": prompt,
        "prompt_tokens": len(prompt) // 3,
        "tokens": tokens,
        "logprobs": [round(-chance.expovariate(2), 3) for _ in tokens],
        "versions": versions,
        "finish": "stop",
    }
