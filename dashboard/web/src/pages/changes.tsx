// The changes, the newest first, with links to the mesh before and after each change.

import type { PageProps } from "../app";
import { ago, clock } from "../format";
import { moment } from "../moment";
import { href } from "../route";

const KINDS = {
  documents: "documents",
  refused: "edit refused",
  instance: "started again",
  control_plane: "control plane",
};

export function ChangesPage({ marks, place, now }: PageProps) {
  return (
    <section class="changes" aria-labelledby="changes">
      <h1 id="changes">Changes</h1>
      {marks.length === 0 && <p class="quiet">Nothing has changed since the history began.</p>}
      <ol>
        {[...marks].reverse().map((mark) => (
          <li key={`${mark.at_ms} ${mark.kind}`} class={mark.kind}>
            <time dateTime={new Date(mark.at_ms).toISOString()}>{clock(mark.at_ms)}</time>{" "}
            <span class="quiet">{ago(mark.at_ms, now)}</span> <span class="badge">{KINDS[mark.kind]}</span>{" "}
            {moment === null && (
              <>
                <a href={href("/", place, { at: mark.at_ms })}>before</a>{" "}
                <a href={href("/", place, { at: mark.at_ms + place.window })}>after</a>
              </>
            )}
            <ul>
              {mark.lines.map((line) => (
                <li key={line}>{line}</li>
              ))}
            </ul>
          </li>
        ))}
      </ol>
    </section>
  );
}
