// The results of `leno check`, with the rights of the user of `leno dashboard`.

import * as api from "../api";
import type { PageProps } from "../app";
import { clock, type Health } from "../format";
import { OfNow, Unavailable, fits } from "../lists";
import { useLoaded } from "../load";
import { change } from "../route";
import { MAX_ROWS, Mark, Table } from "../tables";

/** How often the checks are repeated. They are rare because each queries every proxy. */
const CHECKS_TICK = 15_000;
const HEALTH: Record<api.Level, Health> = { good: "good", warning: "warning", bad: "bad", unknown: "bad" };
const ORDER: api.Level[] = ["bad", "unknown", "warning", "good"];

export function ChecksPage({ place }: PageProps) {
  const loaded = useLoaded("checks", CHECKS_TICK, api.checks);
  const wanted = { ...place, namespace: "" };
  return (
    <section class="checks">
      <h1 class="unseen">Health checks</h1>
      <OfNow place={place} />
      {loaded.error !== null && <Unavailable>{loaded.error}</Unavailable>}
      {!loaded.value && loaded.error === null && <p class="quiet">Looking…</p>}
      {loaded.value && (
        <div class="filter">
          <label>
            Show{" "}
            <select value={place.filter} onChange={(event) => change(place, { filter: event.currentTarget.value })}>
              <option value="">all</option>
              <option value="troubled">with problems</option>
            </select>
          </label>
        </div>
      )}
      {loaded.value?.groups.map(({ name, findings }) => {
        const shown = findings
          .filter((one) => (place.filter !== "troubled" || one.level !== "good") && fits(wanted, [], [one.subject, one.text, one.remedy ?? ""]))
          .sort((a, b) => ORDER.indexOf(a.level) - ORDER.indexOf(b.level));
        const rows = shown.slice(0, MAX_ROWS).map((one, nth) => (
          <tr key={`${nth} ${one.subject}`}>
            <td title={one.asks}><Mark is={HEALTH[one.level]} /> {one.subject}</td>
            <td class={one.level === "good" ? "words" : one.level === "warning" ? "words partly" : "words bad"}>{one.text}</td>
            <td class="words">{one.remedy ?? ""}</td>
          </tr>
        ));
        return <Table key={name} id={name.toLowerCase().replaceAll(" ", "-")} heading={name} columns={["Check", "Result", "What to do"]} rows={rows} left={shown.length - rows.length} none={findings.length === 0 ? "Nothing to check." : "None that fits."} />;
      })}
      {loaded.value && <p class="quiet">Looked at {clock(loaded.value.at_ms)}. The same in a terminal: <code>leno check</code>.</p>}
    </section>
  );
}
