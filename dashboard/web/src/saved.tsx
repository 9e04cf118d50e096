// The button that saves a moment of the mesh as a file, and the note on a saved page.

import { useState } from "preact/hooks";

import * as api from "./api";
import { clock, length } from "./format";
import { moment, save } from "./moment";
import type { Place } from "./route";

export function Saved() {
  if (moment === null) return null;
  return (
    <p class="state" data-state="saved">
      <strong>A file:</strong> the mesh in the {length(moment.window_ms / 1000)} before {clock(moment.at_ms)}, saved {new Date(moment.saved_ms).toISOString()}. It has this moment alone.
    </p>
  );
}

export function SaveButton({ mesh, place }: { mesh: string; place: Place }) {
  const [failed, setFailed] = useState<string | null>(null);
  if (moment !== null) return null;
  const pressed = async () => {
    try {
      await save(await api.momentOf(place.at, place.window, AbortSignal.timeout(60_000)), mesh);
      setFailed(null);
    } catch (error) {
      setFailed(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <footer class="save">
      <button type="button" onClick={() => void pressed()}>Save this moment as a file</button>
      {failed !== null && <span class="bad" role="status">It cannot be saved: {failed}</span>}
    </footer>
  );
}
