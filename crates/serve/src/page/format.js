// Numbers formatted for people.

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let value = count;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

export const percent = (part, whole) => (whole > 0 ? Math.min(100, (100 * part) / whole) : 0);
/** One decimal if needed, so that shares add up. */
export const rounded = (value) => String(Math.round(value * 10) / 10);
export const plural = (count, one) => `${count} ${one}${count === 1 ? "" : "s"}`;

/** Formats microseconds. */
export function time(us) {
  if (us < 100) return `${us < 10 ? us.toFixed(1) : Math.round(us)} µs`;
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${(us / 1000).toFixed(us < 10_000 ? 1 : 0)} ms`;
  return `${(us / 1e6).toFixed(1)} s`;
}

/** Formats seconds of waiting time. */
export function duration(secs) {
  if (secs < 90) return `${Math.ceil(secs)} s`;
  return secs < 5400 ? `${Math.round(secs / 60)} min` : `${(secs / 3600).toFixed(1)} h`;
}

/** Network bandwidth is shown in bits. */
export function bandwidth(bytesPerSec) {
  const bits = bytesPerSec * 8;
  if (bits >= 1e9) return `${(bits / 1e9).toFixed(bits < 1e10 ? 1 : 0)} Gb/s`;
  if (bits >= 1e6) return `${Math.round(bits / 1e6)} Mb/s`;
  return `${Math.round(bits / 1e3)} kb/s`;
}

/** Tokens per second, rounded to a useful precision. */
export function rate(value) {
  if (value >= 100) return String(Math.round(value));
  return value >= 0.05 || value === 0 ? value.toFixed(1) : value.toFixed(2);
}

export const clock = (ms) => new Date(ms).toLocaleTimeString();

export function day(ms) {
  const [then, now] = [new Date(ms), new Date()];
  if (then.toDateString() === now.toDateString()) return "Today";
  return then.toLocaleDateString(undefined, { weekday: "long", day: "numeric", month: "long" });
}
