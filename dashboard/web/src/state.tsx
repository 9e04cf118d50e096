// Shows whether the page is up to date: the state of the control plane, the history and the proxies.

import type { Overview } from "./api";
import { clock } from "./format";
import type { Loaded } from "./load";

/** After this time without an observation, the figures count as old. */
const OLD = 20_000;

export function StateBar({ overview, failed }: { overview: Loaded<Overview>; failed: string | null }) {
  const now = overview.value;
  const old = now && now.to_ms !== null && now.now_ms - now.to_ms > OLD;
  return (
    <div class="states" role="status" aria-live="polite">
      {failed !== null && (
        <p class="state bad" data-state="disconnected">
          <strong>Not connected:</strong> {failed}. {now?.to_ms ? `What is shown is of ${clock(now.to_ms)}.` : ""}
        </p>
      )}
      {now?.control_plane === "away" && (
        <p class="state bad" data-state="control-plane-away">
          <strong>The control plane is away.</strong> Proxies go on with what they were told last; edits and new
          instances reach them when it is back.
        </p>
      )}
      {failed === null && old && now.to_ms !== null && (
        <p class="state bad">
          <strong>The figures are old:</strong> the last observation was at {clock(now.to_ms)}.
        </p>
      )}
      {now && now.to_ms === null && <p class="state">The first figures come within ten seconds.</p>}
    </div>
  );
}
