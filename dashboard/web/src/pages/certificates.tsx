// The certificates: those that sign, up to the trusted roots, and when the certificates of the proxies expire.

import * as api from "../api";
import type { PageProps } from "../app";
import { full, length, proxyPage, type Health } from "../format";
import { Beyond, Filters, OfNow, Unavailable, fits } from "../lists";
import { useLoaded } from "../load";
import { href } from "../route";
import { MAX_ROWS, Mark, Table } from "../tables";
import { useProxies } from "./proxies";

/** How often the page is loaded again. The signing certificates change rarely. */
const AUTHORITY_TICK = 30_000;
/** A certificate of a proxy that ends sooner than this was not renewed in time. */
const SOON_S = 600;
/** A signing certificate is marked earlier, because people must replace it. */
const SIGNER_SOON_S = 30 * 86_400;

function judged(ends: number, now: number, soon: number): [Health, string] {
  const left = ends - now / 1000;
  if (left <= 0) return ["bad", `expired ${length(-left)} ago`];
  return [left < soon ? "warning" : "good", `ends in ${length(left)}`];
}

/** A date as text; a dash for an invalid date. `toISOString` would throw for it, and the page would stay blank. */
function day(seconds: number): string {
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? "–" : date.toISOString().slice(0, 16).replace("T", " ");
}

export function CertificatesPage({ place, now }: PageProps) {
  const authority = useLoaded("authority", AUTHORITY_TICK, api.authority);
  return (
    <section class="certificates">
      <h1 class="unseen">Certificates</h1>
      <OfNow place={place} />
      {authority.error !== null && <Unavailable>what signs is not known: {authority.error}</Unavailable>}
      {authority.value && <Signers of={authority.value.authority} now={now} />}
      <Leaves place={place} now={now} />
    </section>
  );
}

function Signers({ of, now }: { of: api.Authority["authority"]; now: number }) {
  const federated = Object.entries(of.federated).flatMap(([domain, roots]) => roots.map((one): [string, api.Certificate] => [`trusted as clients of ${domain}`, one]));
  const all: [string, api.Certificate][] = [
    ...of.chain.map((one, nth): [string, api.Certificate] => [nth === 0 ? "signs workloads" : `signs the one above`, one]),
    ...of.roots.map((one): [string, api.Certificate] => ["root, trusted", one]),
    ...of.others.map((one): [string, api.Certificate] => ["root of another authority, trusted", one]),
    ...federated,
  ];
  const rows = all.slice(0, MAX_ROWS).map(([role, one], nth) => {
    const [is, words] = judged(one.not_after_unix_s, now, SIGNER_SOON_S);
    return (
      <tr key={`${nth} ${one.sha256}`}>
        <td><Mark is={is} /> {role}</td>
        <td>{one.subject}</td>
        <td title={`${day(one.not_before_unix_s)} to ${day(one.not_after_unix_s)} UTC`}>{words}</td>
        <td><code title={one.sha256}>{one.sha256.slice(0, 16)}</code></td>
      </tr>
    );
  });
  return (
    <>
      <dl class="figures">
        <div><dt>Trust domain</dt><dd>{of.trust_domain}</dd></div>
        <div><dt>Root</dt><dd>{of.own_root ? "the mesh's own" : "given"}</dd></div>
        <div><dt>Rotation</dt><dd class={of.phase === "stable" ? "" : "partly"}>{of.phase}</dd></div>
        <div><dt>Proxies that are up to date</dt><dd>{of.proxies.current} of {of.proxies.connected}</dd></div>
        {of.revoked.length > 0 && <div><dt>Identities with revoked certificates</dt><dd>{of.revoked.length}</dd></div>}
      </dl>
      {of.problem !== null && <p class="state bad">{of.problem}</p>}
      <Table id="signers" heading="What signs, and what is trusted" columns={["Role", "Subject", "Validity", "SHA-256"]} rows={rows} left={all.length - rows.length} none="None." />
    </>
  );
}

function Leaves({ place, now }: Pick<PageProps, "place" | "now">) {
  const loaded = useProxies();
  const proven = (loaded.value?.proxies ?? []).flatMap((proxy) => {
    const ends = proxy.state?.certificate_ends_s ?? null;
    return ends === null ? [] : [{ proxy, ends, identity: proxy.state?.identity ?? "" }];
  });
  const shown = proven
    .filter(({ proxy, identity, ends }) => fits(place, [proxy.namespace], [full(proxy.namespace, proxy.instance), identity]) && (place.filter !== "soon" || ends - now / 1000 < SOON_S))
    .sort((a, b) => a.ends - b.ends);
  const rows = shown.slice(0, MAX_ROWS).map(({ proxy, ends, identity }) => {
    const [is, words] = judged(ends, now, SOON_S);
    return (
      <tr key={full(proxy.namespace, proxy.instance)}>
        <td><Mark is={is} /> <a href={href(proxyPage(proxy.namespace, proxy.instance), place)}>{full(proxy.namespace, proxy.instance)}</a></td>
        <td>{identity}</td>
        <td title={`${day(ends)} UTC`}>{words}</td>
      </tr>
    );
  });
  return (
    <>
      {loaded.error !== null && <Unavailable>{loaded.error}</Unavailable>}
      <Filters place={place} namespaces={proven.map(({ proxy }) => proxy.namespace)} filters={[["soon", "ending soon"]]} />
      <Table id="leaves" heading="Certificates of proxies" columns={["Instance", "Identity", "Validity"]} rows={rows} left={shown.length - rows.length} none={proven.length === 0 ? "No proxy has a certificate yet." : "None that fits."} />
      <Beyond count={loaded.value?.left_out ?? 0} what="proxies" />
    </>
  );
}
