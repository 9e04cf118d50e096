// Shows what a success rate does not contain: requests that the server did not answer, and what the mesh itself
// failed or refused.

import type { Signals } from "./api";
import { percent } from "./format";

/** Figures for the abandoned and denied requests, if there are any. */
export const Unanswered = ({ of: { requests, given_up, denied } }: { of: Signals }) => (
  <>
    {given_up > 0 && <div><dt>Given up by the client</dt><dd class="bad">{percent(given_up / requests)} ({given_up})</dd></div>}
    {denied > 0 && <div><dt>Denied by a policy</dt><dd class="partly">{percent(denied / requests)} ({denied})</dd></div>}
  </>
);

export function Causes({ causes }: { causes: Signals["causes"] }) {
  if (causes.length === 0) return null;
  return (
    <div class="wide" tabIndex={0} role="region" aria-label="Failed or refused by the mesh">
      <table class="causes">
        <caption>Failed or refused by the mesh</caption>
        <thead><tr><th scope="col">Cause</th><th scope="col">Times</th></tr></thead>
        <tbody>
          {causes.map(({ cause, count }) => (
            <tr key={cause}><td><code>{cause}</code></td><td class="number">{count}</td></tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
