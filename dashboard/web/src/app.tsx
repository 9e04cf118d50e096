// The frame of every page: the name of the mesh, its state, the time control, and the page's content.

import { useEffect, useRef } from "preact/hooks";

import * as api from "./api";
import { TICK, useLoaded } from "./load";
import { moment } from "./moment";
import { CertificatesPage } from "./pages/certificates";
import { ChangesPage } from "./pages/changes";
import { ChecksPage } from "./pages/checks";
import { RoutePage } from "./pages/document";
import { EdgePage } from "./pages/edge";
import { FlowsPage } from "./pages/flows";
import { LivePage } from "./pages/live";
import { MeshPage } from "./pages/mesh";
import { PoliciesPage, PolicyPage } from "./pages/policies";
import { ProxiesPage, ProxyPage } from "./pages/proxies";
import { RoutesPage } from "./pages/routes";
import { WorkloadPage } from "./pages/workload";
import { change, href, usePlace, type Place } from "./route";
import { Saved, SaveButton } from "./saved";
import { StateBar } from "./state";
import { Timeline } from "./timeline";

/** For each page: its path, its label, and the first parts of the addresses for which it is selected. */
const PAGES: [string, string, ...string[]][] = [
  ["/", "Mesh", ""],
  ["/routes", "Routes", "routes", "route"],
  ["/policies", "Policies", "policies", "policy"],
  ["/certificates", "Certificates", "certificates"],
  ["/proxies", "Proxies", "proxies", "proxy"],
  ["/flows", "Connections", "flows"],
  ["/checks", "Checks", "checks"],
  ["/changes", "Changes", "changes"],
];

export function App() {
  const place = usePlace();
  const search = useRef<HTMLInputElement>(null);
  const overview = useLoaded("overview", TICK, api.overview);
  const topology = useLoaded(`topology ${place.at} ${place.window}`, place.at === undefined ? TICK : null, (signal) =>
    api.topology(place.at, place.window, signal),
  );
  const from = overview.value?.from_ms ?? null;
  const changes = useLoaded(`changes ${from !== null}`, TICK, async (signal) =>
    from === null ? { changes: [] } : api.changes(from - 1, Date.now() + TICK, signal),
  );
  useKeys(place, search);

  const mesh = overview.value?.mesh;
  useEffect(() => {
    const page = place.parts.slice(1).filter((part) => part !== "").join(" ");
    document.title = [page, mesh, "Leno"].filter(Boolean).join(" · ");
  }, [mesh, place]);

  return (
    <>
      <header class="bar">
        <a class="brand" href={href("/", place)}>
          Leno <span class="mesh">{mesh}</span>
        </a>
        <nav aria-label="pages">
          {PAGES.map(([path, words, ...parts]) => (
            <a key={path} href={href(path, place, { filter: "" })} aria-current={parts.includes(place.parts[0] ?? "") ? "page" : undefined}>
              {words}
            </a>
          ))}
        </nav>
        <label class="search">
          <span class="unseen">Search names</span>
          <input
            ref={search}
            type="search"
            placeholder="Search names  ( / )"
            value={place.search}
            onInput={(event) => change(place, { search: event.currentTarget.value })}
          />
        </label>
      </header>
      {overview.value && moment === null && (
        <Timeline overview={overview.value} marks={changes.value?.changes ?? []} place={place} />
      )}
      <main>
        <Saved />
        <StateBar overview={overview} failed={overview.error ?? topology.error} />
        {topology.value && (
          <Page place={place} topology={topology.value} marks={changes.value?.changes ?? []} now={overview.value?.now_ms ?? Date.now()} begin={from ?? 0} />
        )}
        {!topology.value && !topology.error && <p class="quiet">Loading…</p>}
      </main>
      {mesh !== undefined && <SaveButton mesh={mesh} place={place} />}
    </>
  );
}

export interface PageProps {
  place: Place;
  topology: api.Topology;
  marks: api.Mark[];
  now: number;
  /** The time at which the history begins. */
  begin: number;
}

function Page(props: PageProps) {
  const [kind, ...names] = props.place.parts;
  switch (kind) {
    case undefined:
      return <MeshPage {...props} />;
    case "routes":
      return <RoutesPage {...props} />;
    case "route":
      return <RoutePage {...props} kind={names[0] ?? ""} namespace={names[1] ?? ""} name={names[2] ?? ""} />;
    case "policies":
      return <PoliciesPage {...props} />;
    case "policy":
      return <PolicyPage {...props} kind={names[0] ?? ""} namespace={names[1] ?? ""} name={names[2] ?? ""} />;
    case "certificates":
      return <CertificatesPage {...props} />;
    case "proxies":
      return <ProxiesPage {...props} />;
    case "proxy":
      return <ProxyPage {...props} namespace={names[0] ?? ""} name={names[1] ?? ""} />;
    case "flows":
      return <FlowsPage {...props} />;
    case "checks":
      return <ChecksPage {...props} />;
    case "changes":
      return <ChangesPage {...props} />;
    case "workload":
      return <WorkloadPage {...props} namespace={names[0] ?? ""} name={names[1] ?? ""} />;
    case "live":
      return <LivePage {...props} namespace={names[0] ?? ""} name={names[1] ?? ""} />;
    case "edge":
      return <EdgePage {...props} client={[names[0] ?? "", names[1] ?? ""]} server={[names[2] ?? "", names[3] ?? ""]} />;
    default:
      return <p>There is no such page. <a href={href("/", props.place)}>To the mesh</a></p>;
  }
}

/** `/` searches, `l` follows the present, Escape goes back to the whole mesh. */
function useKeys(shown: Place, search: { current: HTMLInputElement | null }) {
  // An effect runs a frame after its component is shown. A key that is pressed in between must act on the new
  // place, not on the old one.
  const latest = useRef(shown);
  latest.current = shown;
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const place = latest.current;
      const typing = event.target instanceof HTMLInputElement && event.target.type === "search";
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") {
        if (typing) search.current?.blur();
        if (place.search !== "" || place.namespace !== "" || place.filter !== "") change(place, { search: "", namespace: "", filter: "" });
        else if (place.parts.length > 0) location.hash = href("/", place);
      } else if (!typing && event.key === "/") {
        event.preventDefault();
        search.current?.focus();
      } else if (!typing && event.key === "l") {
        change(place, { at: undefined });
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}
