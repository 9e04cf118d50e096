// Loads data, and loads it again every few seconds while the present is shown.

import { useEffect, useState } from "preact/hooks";

/** The time between two observations of the proxies, in milliseconds. */
export const TICK = 5_000;

export interface Loaded<T> {
  value: T | null;
  /** Why the last attempt failed; null if it succeeded. After a failure, the value is that of an earlier attempt. */
  error: string | null;
}

/** Loads a value when `key` changes and then every `every` milliseconds. A value is kept until the next one arrives. */
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
