// The problems, the worst first.

import type { Problem } from "./api";
import { aboutPage, ago, clock } from "./format";
import { href, type Place } from "./route";

export function Problems({ problems, place, now }: { problems: Problem[]; place: Place; now: number }) {
  return (
    <section class="problems" aria-labelledby="broken">
      <h2 id="broken">What is broken</h2>
      {problems.length === 0 && <p class="well">Nothing{place.at === undefined ? "" : ` at ${clock(place.at)}`}.</p>}
      <ul>
        {problems.map((problem) => {
          const page = aboutPage(problem.about);
          return (
            <li key={problem.title} class={problem.severity}>
              <span class="badge">{problem.severity === "bad" ? "broken" : "warning"}</span>{" "}
              {page === null ? <strong>{problem.title}</strong> : <a href={href(page, place)}>{problem.title}</a>}
              {problem.since_ms !== null && (
                <span class="since">
                  {" "}
                  since {clock(problem.since_ms)}
                  {place.at === undefined && ` (${ago(problem.since_ms, now)})`}
                </span>
              )}
              {problem.culprit !== "" && (
                <ul class="evidence">
                  <li class="culprit">culprit: {problem.culprit}</li>
                  {problem.evidence.map((line) => (
                    <li key={line}>{line}</li>
                  ))}
                  {problem.changes.map((mark) => (
                    <li key={mark.at_ms} class="before">
                      changed at {clock(mark.at_ms)}: {mark.lines.join("; ")}
                    </li>
                  ))}
                  {problem.more !== "" && (
                    <li>
                      more: <code>{problem.more}</code>
                    </li>
                  )}
                </ul>
              )}
            </li>
          );
        })}
      </ul>
    </section>
  );
}
