// Loads data, and loads it again every few seconds while the present is shown.

import { useEffect, useState } from "preact/hooks";

/** The proxies are observed this often. */
export const TICK = 5_000;

export interface Loaded<T> {
  value: T | null;
  /** Why the last attempt failed; the value is that of the attempt before. */
  error: string | null;
}

/** Loads when `key` changes, and every `every` milliseconds. The value stays until there is another one. */
export function useLoaded<T>(key: string, every: number | null, load: (signal: AbortSignal) => Promise<T>): Loaded<T> {
  const [state, setState] = useState<Loaded<T> & { key: string }>({ key, value: null, error: null });
  useEffect(() => {
    const aborted = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const once = async () => {
      try {
        const value = await load(aborted.signal);
        if (!aborted.signal.aborted) setState({ key, value, error: null });
      } catch (error) {
        if (aborted.signal.aborted) return;
        const why = error instanceof Error ? error.message : String(error);
        setState((before) => ({ key, value: before.value, error: why }));
      }
      if (every !== null && !aborted.signal.aborted) timer = setTimeout(once, every);
    };
    void once();
    return () => {
      aborted.abort();
      clearTimeout(timer);
    };
  }, [key, every]);
  return state;
}
