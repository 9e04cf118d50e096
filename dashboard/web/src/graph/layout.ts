// Computes where workloads are drawn: callers to the left of what they call, grouped by namespace. The same mesh
// is always drawn in the same way, so that differences between two moments are visible.

import type { Topology } from "../api";
import { full, health, type Health } from "../format";

export interface Node {
  key: string;
  namespace: string;
  name: string;
  x: number;
  y: number;
  health: Health;
  /** Whether some of its instances take no traffic. */
  unready: boolean;
  /** Whether it is no workload of the mesh, but clients without a proxy or addresses outside. */
  outside: boolean;
}

export interface Link {
  key: string;
  from: Node;
  to: Node;
  health: Health;
  encrypted: boolean;
  perSecond: number;
}

export interface Group {
  namespace: string;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Picture {
  nodes: Node[];
  links: Link[];
  groups: Group[];
  width: number;
  height: number;
}

const ORDER: Health[] = ["idle", "good", "warning", "bad"];

const COLUMN = 190;
const ROW = 46;
const MARGIN = 34;
const MOST_ROWS = 14;
/** The desired ratio of the picture's width to its height. */
const SHAPE = 2;

export function layout(topology: Topology): Picture {
  const nodes = new Map<string, Node>();
  const node = (namespace: string, name: string): Node => {
    const key = full(namespace, name);
    let found = nodes.get(key);
    if (!found) {
      found = { key, namespace, name, x: 0, y: 0, health: "idle", unready: false, outside: true };
      nodes.set(key, found);
    }
    return found;
  };
  for (const workload of topology.workloads) {
    const one = node(workload.namespace, workload.name);
    one.outside = false;
    one.health = health(workload);
    one.unready = workload.ready < workload.instances;
  }
  const links = topology.edges.map((edge): Link => {
    const from = node(edge.client_namespace, edge.client);
    const to = node(edge.server_namespace, edge.server);
    return { key: `${from.key} ${to.key}`, from, to, health: health(edge), encrypted: edge.mtls === "all", perSecond: edge.requests_per_s };
  });
  // A workload that only calls others is not idle.
  for (const { from, health } of links) if (from.health === "idle" && health !== "idle") from.health = "good";
  // Failing links are drawn last, above the others.
  links.sort((a, b) => ORDER.indexOf(a.health) - ORDER.indexOf(b.health));
  const depths = depthsOf([...nodes.values()], links);
  const groups = new Map<string, Node[]>();
  for (const one of [...nodes.values()].sort((a, b) => (a.key < b.key ? -1 : 1))) {
    const group = groups.get(one.namespace);
    if (group) group.push(one);
    else groups.set(one.namespace, [one]);
  }
  return { nodes: [...nodes.values()], links, ...place(groups, depths) };
}

/** The length of the longest chain of calls that leads to each workload; a cycle counts once. */
function depthsOf(nodes: Node[], links: Link[]): Map<Node, number> {
  const depths = new Map(nodes.map((node) => [node, 0]));
  for (let round = 0; round < 8; round += 1) {
    let moved = false;
    for (const { from, to } of links) {
      const wanted = (depths.get(from) ?? 0) + 1;
      if (from !== to && wanted > (depths.get(to) ?? 0) && wanted <= 8) {
        depths.set(to, wanted);
        moved = true;
      }
    }
    if (!moved) break;
  }
  return depths;
}

function place(groups: Map<string, Node[]>, depths: Map<Node, number>) {
  const depth = (node: Node) => depths.get(node) ?? 0;
  const boxes = [...groups].map(([namespace, nodes]) => {
    const columns: Node[][] = [];
    for (const wanted of [...new Set(nodes.map(depth))].sort((a, b) => a - b)) {
      const same = nodes.filter((node) => depth(node) === wanted);
      for (let start = 0; start < same.length; start += MOST_ROWS) columns.push(same.slice(start, start + MOST_ROWS));
    }
    const rows = Math.max(...columns.map((column) => column.length));
    const mean = nodes.reduce((sum, node) => sum + depth(node), 0) / nodes.length;
    return { namespace, columns, mean, width: columns.length * COLUMN + MARGIN, height: rows * ROW + MARGIN + 16 };
  });
  boxes.sort((a, b) => a.mean - b.mean || (a.namespace < b.namespace ? -1 : 1));
  const area = boxes.reduce((sum, box) => sum + box.width * box.height, 0);
  const most = Math.max(Math.sqrt(area * SHAPE), ...boxes.map((box) => box.width));
  let [x, y, shelf, width] = [0, 0, 0, 0];
  const placed: Group[] = [];
  for (const box of boxes) {
    if (x > 0 && x + box.width > most) [x, y, shelf] = [0, y + shelf + MARGIN, 0];
    placed.push({ namespace: box.namespace, x, y, width: box.width, height: box.height });
    box.columns.forEach((column, nth) => {
      const above = (box.height - 16 - column.length * ROW) / 2;
      column.forEach((node, row) => {
        node.x = x + MARGIN / 2 + (nth + 0.5) * COLUMN;
        node.y = y + 16 + above + (row + 0.5) * ROW;
      });
    });
    x += box.width + MARGIN;
    width = Math.max(width, x - MARGIN);
    shelf = Math.max(shelf, box.height);
  }
  return { groups: placed, width, height: y + shelf };
}
