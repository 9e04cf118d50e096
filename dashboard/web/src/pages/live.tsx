// Live requests of a workload, as `leno tap` shows them. The page polls a tap, and closes it at the end. Proxies
// close a tap that is no longer polled.

import { useEffect, useRef, useState } from "preact/hooks";

import * as api from "../api";
import type { PageProps } from "../app";
import { clock, full, workloadPage } from "../format";
import { href } from "../route";

const PAUSE = 1_000;
/** Most requests that are shown; the newest are shown. */
const MOST = 200;

interface Filter {
  to: string;
  method: string;
  path: string;
  status: string;
}

const NONE: Filter = { to: "", method: "", path: "", status: "" };

const FIELDS: [keyof Filter, string, string][] = [
  ["to", "Server", "cart"],
  ["method", "Method", "GET"],
  ["path", "Path begins with", "/api"],
  ["status", "Status", "5xx"],
];

/** The parts of a request's time, in the order in which they occur. */
const PARTS = [
  ["client_proxy_us", "client proxy"],
  ["network_us", "network"],
  ["server_proxy_us", "server proxy"],
  ["application_us", "application"],
  ["response_us", "response"],
] as const;

interface Live {
  requests: api.Tapped[];
  missed: number;
  error: string | null;
}

export function LivePage({ place, namespace, name }: PageProps & { namespace: string; name: string }) {
  const [filter, setFilter] = useState(NONE);
  const [paused, setPaused] = useState(false);
  const live = useTap(full(namespace, name), filter, paused);
  const form = useRef<HTMLFormElement>(null);
  const apply = (event: Event) => {
    event.preventDefault();
    if (!form.current) return;
    const data = new FormData(form.current);
    const text = (field: string) => String(data.get(field) ?? "").trim();
    setFilter({ to: text("to"), method: text("method"), path: text("path"), status: text("status") });
  };
  return (
    <article>
      <h1>Live requests of <a href={href(workloadPage(namespace, name), place)}>{full(namespace, name)}</a></h1>
      <form class="filter" ref={form} onSubmit={apply}>
        {FIELDS.map(([field, label, example]) => (
          <label key={field}>{label} <input name={field} placeholder={example} defaultValue={filter[field]} /></label>
        ))}
        <button type="submit">Filter</button>
        <button type="button" aria-pressed={paused} onClick={() => setPaused(!paused)}>{paused ? "Go on" : "Pause"}</button>
      </form>
      {live.error !== null && <p class="state bad" role="status">{live.error}</p>}
      <p class="quiet" role="status">
        {live.requests.length === 0 ? "No request was recorded yet." : `The last ${live.requests.length} requests.`}
        {live.missed > 0 && ` ${live.missed} more were not recorded: there are too many a second.`}
      </p>
      {live.requests.length > 0 && <Requests all={live.requests} />}
    </article>
  );
}

function Requests({ all }: { all: api.Tapped[] }) {
  return (
    <div class="table wide" tabIndex={0} role="region" aria-label="Requests">
      <table class="tapped">
        <thead>
          <tr><th scope="col">Time</th><th scope="col">Client</th><th scope="col">Server</th><th scope="col">Request</th><th scope="col">Status</th><th scope="col">Took</th><th scope="col">Where the time went</th><th scope="col">Rule</th></tr>
        </thead>
        <tbody>
          {all.map((one) => (
            <tr key={`${one.at_unix_us} ${one.client} ${one.server} ${one.target}`}>
              <td class="number">{clock(one.at_unix_us / 1000)}</td>
              <td title={one.client_identity ?? ""}>{one.client || "?"}{!one.mtls && <span class="partly"> plaintext</span>}</td>
              <td title={one.server_identity ?? ""}>{one.server || "?"}</td>
              <td><code>{one.method} {one.target.startsWith("/") ? `${one.authority}${one.target}` : one.target}</code></td>
              <td class={one.status >= 500 ? "bad number" : "number"}>{one.status}{one.error ? ` ${one.error}` : ""}{one.retries > 0 ? `, ${one.retries} retries` : ""}</td>
              <td class="number">{(one.latency.total_us / 1000).toFixed(2)} ms</td>
              <td>{parts(one)}</td>
              <td>{one.route ?? ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A text such as `network 0.20, application 11.90`, without the parts that took no measurable time. */
function parts({ latency }: api.Tapped): string {
  const known = PARTS.flatMap(([field, word]) => {
    const us = latency[field];
    return us !== null && us !== undefined && us >= 10 ? [`${word} ${(us / 1000).toFixed(2)}`] : [];
  });
  return known.join(", ");
}

function useTap(workload: string, filter: Filter, paused: boolean): Live {
  const [live, setLive] = useState<Live>({ requests: [], missed: 0, error: null });
  const key = JSON.stringify([workload, filter]);
  useEffect(() => {
    if (paused) return;
    const aborted = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    // `randomUUID` exists only in a secure context, which a page that is not on loopback is not.
    const id = [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    const once = async () => {
      try {
        const page = await api.tap({ id, workload, ...filter }, aborted.signal);
        if (aborted.signal.aborted) return;
        setLive((before) => ({
          requests: [...page.requests.reverse(), ...before.requests].slice(0, MOST),
          missed: page.beyond + page.dropped,
          error: null,
        }));
      } catch (error) {
        if (aborted.signal.aborted) return;
        const why = error instanceof Error ? error.message : String(error);
        setLive((before) => ({ ...before, error: why }));
        // The user lacks the right, or the object does not exist. Polling again every second would not change
        // that.
        if (error instanceof api.Refused && error.status >= 400 && error.status < 500) return;
      }
      timer = setTimeout(once, PAUSE);
    };
    void once();
    // A page with another filter opens another tap, and only a few taps are allowed.
    const close = () => api.closeTap(id);
    addEventListener("pagehide", close);
    return () => {
      removeEventListener("pagehide", close);
      aborted.abort();
      clearTimeout(timer);
      close();
    };
  }, [key, paused]);
  useEffect(() => setLive({ requests: [], missed: 0, error: null }), [key]);
  return live;
}
