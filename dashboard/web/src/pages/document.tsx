// A route or a policy: its document, and the status that the control plane or `leno analyze` gives it.

import * as api from "../api";
import type { PageProps } from "../app";
import { full } from "../format";
import { OfNow, Unavailable } from "../lists";
import { TICK, useLoaded } from "../load";
import type { Place } from "../route";
import { MAX_ROWS, RouteTable, Table } from "../tables";

/** How often the document is read again, from the API server and with the rights of the user. */
const EVERY = 30_000;

const isGood = (one: api.Condition) => one.status === "True";

export function DocumentOf({ kind, namespace, name, place }: { kind: string; namespace: string; name: string; place: Place }) {
  const loaded = useLoaded(`document ${kind} ${namespace} ${name}`, EVERY, (signal) => api.document(kind, namespace, name, signal));
  const document = loaded.value;
  const rows = (document?.status ?? []).slice(0, MAX_ROWS).map((one) => (
    <tr key={[one.of, one.type, one.reason, one.message].join(" ")}>
      <td>{one.of || "–"}</td>
      <td>{one.type}</td>
      <td class={isGood(one) ? "" : "partly"}>{one.status}</td>
      <td>{one.reason}</td>
      <td>{one.message}</td>
    </tr>
  ));
  return (
    <>
      {loaded.error !== null && <Unavailable>{loaded.error}</Unavailable>}
      {document && (
        <>
          <OfNow place={place} />
          <Table id="conditions" heading="Status" columns={["Of", "Condition", "Is", "Reason", "Message"]} rows={rows} left={document.status.length - rows.length} none={document.no_status ?? "There is none."} />
          <section aria-labelledby="yaml">
            <h2 id="yaml">Document</h2>
            <pre class="yaml" tabIndex={0} role="region" aria-label="YAML"><code>{document.yaml}</code></pre>
          </section>
        </>
      )}
    </>
  );
}

export function RoutePage({ place, kind, namespace, name }: PageProps & { kind: string; namespace: string; name: string }) {
  const { at, window } = place;
  const route = `${kind} ${full(namespace, name)}`;
  const loaded = useLoaded(`routes ${at} ${window}`, at === undefined ? TICK : null, (signal) => api.routes(at, window, signal));
  return (
    <article>
      <h1>{route}</h1>
      {loaded.error !== null && <p class="state bad">The rules are not known: {loaded.error}.</p>}
      {loaded.value && <RouteTable routes={loaded.value.routes.filter((one) => one.route === route)} place={place} />}
      <DocumentOf kind={kind} namespace={namespace} name={name} place={place} />
    </article>
  );
}
