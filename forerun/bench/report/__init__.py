"""The report: one HTML file that needs no network, no script and no other file, made from a run alone.

It begins with what to do, then shows why, and ends with every figure.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from forerun.bench.advice import Advice, advise, command
from forerun.bench.findings import caveats, findings
from forerun.bench.records import Run
from forerun.bench.report import acceptance_plot, latency_plot, speed_plots, tables, timeline
from forerun.bench.report.series import series_of
from forerun.bench.report.svg import escape
from forerun.bench.summary import Summary, summarise
from forerun.bench.variants import OFF


def write(run: Run, path: Path) -> None:
    """Writes the report of a run."""
    path.write_text(render(run), encoding="utf-8")


def render(run: Run) -> str:
    """The report of a run, as HTML."""
    summary = summarise(run)
    advice = advise(summary)
    style = resources.files("forerun.bench.report").joinpath("style.css").read_text(encoding="utf-8")
    parts = (_head(run), _advice(run, summary, advice), _plots(run, summary, advice), _tables(run, summary, advice))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>forerun bench: {escape(_target(run))}</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _target(run: Run) -> str:
    return next((found.target for found in run.deployments if found.target), "no target")


def _head(run: Run) -> str:
    machine = run.machine
    where = [f"{machine.get('cores', '?')} cores of {machine.get('cpu') or 'an unknown CPU'}", *machine.get("gpus", [])]
    known = next((found for found in run.deployments if not found.failure), None)
    kind = f" in {known.dtype} on {known.device}" if known is not None and known.dtype else ""
    drafts = ", ".join(dict.fromkeys(found.draft for found in run.deployments if found.draft)) or "none"
    measured = sum(len(done.requests) for done in run.passes)
    tokens = sum(request.tokens for done in run.passes for request in done.requests)
    return (
        f'<header><p class="kicker">forerun bench · {escape(run.created)}</p>'
        f"<h1>Does speculation pay for {escape(_target(run))}?</h1>"
        f"<p>Target {escape(_target(run))}{escape(kind)}; drafts: {escape(drafts)}. "
        f"{escape(', '.join(where))}. {measured} requests, {tokens:,} output tokens.</p></header>"
    )


def _advice(run: Run, summary: Summary, advice: Advice) -> str:
    rows = "".join(
        f'<tr><td class="load">{escape(choice.load.label)}</td>'
        f'<td><span class="pick {"none" if choice.pick == OFF else "some"}">{escape(choice.pick)}</span></td>'
        f"<td>{escape(choice.reason)}</td></tr>"
        for choice in advice.choices
    )
    return (
        f'<section class="advice"><h2 class="headline">{escape(advice.headline)}</h2>'
        '<table class="choices"><thead><tr><th>load</th><th>run</th><th>because</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>{_how(run, advice)}{_list('What else it shows', findings(run, summary))}"
        f"{_list('How sure this is', caveats(run, summary))}</section>"
    )


def _how(run: Run, advice: Advice) -> str:
    how = command(run, advice)
    return f'<p class="how">To run it: <code>{escape(how)}</code></p>' if how else ""


def _list(heading: str, sentences: list[str]) -> str:
    if not sentences:
        return ""
    return f"<h3>{heading}</h3><ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


_CAPTIONS = {
    "Faster or slower than plain decoding": """Each request's latency over its tokens, against off on the same services
    and prompts. The bar is the range of 95 % of resamplings of the prompts: where it crosses 1, only more requests can
    tell.""",
    "Where the time of a token goes": """A round costs time and commits tokens; right of each bar, ms a token = ms a
    round / tokens a round. Speculation pays when the second number grows faster than the first.""",
    "Throughput against pace": """The number in a mark is the load. Better is up and to the left: more tokens a second
    in all, and a steadier stream for each reader.""",
    "How far a draft is right": """A candidate counts only if all before it were accepted, so the curves fall. One that
    is accepted in fewer than one round in five is seldom worth its time. A hollow mark rests on fewer than 50
    candidates.""",
    "What one request waits for": """A round brings several tokens at once; inter-token latency spreads the gap before a
    chunk evenly over the chunk's tokens. The table below also has the gaps themselves.""",
}


def _plots(run: Run, summary: Summary, advice: Advice) -> str:
    series = series_of(run.variants)
    plots = (
        speed_plots.speedups(summary, series),
        speed_plots.time_of_a_token(summary),
        speed_plots.throughput(summary, series),
        acceptance_plot.acceptance(summary, series),
        latency_plot.latencies(summary, series),
    )
    figures = [_figure(heading, plot, note) for (heading, note), plot in zip(_CAPTIONS.items(), plots, strict=True)]
    return "".join((*figures, _timelines(run, summary, advice)))


def _figure(heading: str, plot: str, caption: str) -> str:
    if not plot:
        return ""
    return f"<section><h2>{heading}</h2><p>{caption}</p><figure>{plot}</figure></section>"


def _timelines(run: Run, summary: Summary, advice: Advice) -> str:
    kept = timeline.timelines(run)
    names = [name for name in summary.variants if name in kept]
    if not names:
        return ""
    rated = {cell.variant: cell.speedup.value for load in summary.loads for cell in summary.at(load) if cell.speedup}
    picked = [choice.pick for choice in advice.choices if choice.pick in kept and choice.pick != OFF]
    shown = picked[0] if picked else max(names, key=lambda name: rated.get(name, 0.0))
    rest = "".join(
        f"<details><summary>{escape(name)}</summary><figure>{timeline.timeline(kept[name], name)}</figure></details>"
        for name in names
        if name != shown
    )
    caption = (
        f"The rounds after the first one, of one request with {escape(shown)}. Time runs to the right. Under each "
        "column of tokens stands the text that the round committed, and below when draft and target worked or waited."
    )
    return _figure("One request, round by round", timeline.timeline(kept[shown], shown), caption) + rest


def _tables(run: Run, summary: Summary, advice: Advice) -> str:
    parts = [
        ("Speed", tables.speed(summary, advice), "TPOT: time per output token after the first."),
        ("Latencies", tables.latencies(summary), "TTFT: time to first token."),
        ("Candidates", tables.candidates(summary), "Drafted, unused: candidates that no round verified."),
        ("Rounds", tables.rounds(summary), "Drafting overlaps with waiting (*). Plain rounds wait for their turn."),
        ("Acceptance by kind of prompt", tables.categories(summary), "Accepted candidates; small: tokens a round."),
        ("Memory", tables.memory(summary), "PSS counts pages that processes share in parts, so it can be added up."),
        ("What was run", tables.settings(run), "Rounds were asked for with each request, so that waits can be shown."),
    ]
    shown = "".join(f"<h3>{name}</h3><p>{note}</p>{content}" for name, content, note in parts if content)
    again = "forerun bench --report-from bench.json -o report.html"
    return (
        f"<section><h2>All figures</h2>{shown}</section><footer><p>Measured with <code>{escape(run.command)}</code>. "
        f"Made again from the JSON alone with <code>{again}</code>.</p></footer>"
    )
