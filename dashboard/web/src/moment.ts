// Saves a moment of the mesh as one file: the page, with the answers for that moment in it. It can be opened
// without a server.

/** The data in a saved page. */
export interface Moment {
  /** When the page was saved; also the end of the window that it shows. */
  saved_ms: number;
  at_ms: number;
  /** The length of the window. */
  window_ms: number;
  /** The answers, by their paths of the interface. */
  answers: Record<string, unknown>;
}

const ELEMENT = "leno-moment";
/** The policy of a saved page: it cannot fetch, send or open anything. */
const POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:";

/** The data of this page, if it is a saved one; null for a page from a server. */
export const moment: Moment | null = JSON.parse(document.getElementById(ELEMENT)?.textContent ?? "null");

/** Escapes a script so that no text in it ends the inline script element. */
const inScript = (text: string) => text.replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
/** Escapes JSON for an inline script. JSON may be written in either way. */
const inData = (value: unknown) => JSON.stringify(value).replaceAll("<", "\\u003c");

/** The page as one file. */
export function written(now: Moment, [script, style]: [string, string]): string {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="${POLICY}">
<title>Leno</title>
<link rel="icon" href="data:,">
<style>${style}</style>
</head>
<body>
<div id="app"></div>
<script type="application/json" id="${ELEMENT}">${inData(now)}</script>
<script type="module">${inScript(script)}</script>
</body>
</html>
`;
}

/** Makes the browser save the page as a file. */
export async function save(now: Moment, mesh: string): Promise<void> {
  const file = async (name: string) => {
    const response = await fetch(name);
    if (!response.ok) throw new Error(`${name}: ${response.statusText}`);
    return response.text();
  };
  const parts = await Promise.all([file("app.js"), file("app.css")]);
  const address = URL.createObjectURL(new Blob([written(now, parts)], { type: "text/html" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = `leno-${mesh.replace(/[^\w.-]+/g, "-")}-${new Date(now.at_ms).toISOString().replace(/[:.]/g, "-")}.html`;
  document.body.append(link);
  link.click();
  link.remove();
  // Some browsers read the address only after this task, so it is revoked later.
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
