// Rates between two statuses: tokens per second, time per step, traffic of links. Nodes report
// running totals at most once a second; the totals restart with every epoch.

/** Averaging window: long enough for stable figures, short enough for current ones. */
const WINDOW_MS = 4000;
const KEPT_MS = 60_000;

/** Samples of each instance's totals, oldest first. */
const samples = new Map();
/** Tokens per second of the whole cluster, for each second of the last minute. */
export const history = [];

function totals(instance) {
  const stats = instance.stats;
  if (!stats) return null;
  const ranks = instance.ranks.map(({ stats: rank }) => rank && {
    compute: rank.compute_us,
    wait: rank.exchange_wait_us,
    between: rank.step_wait_us,
    sent: Object.fromEntries(rank.links.map((link) => [link.peer, link.sent_bytes])),
  });
  return {
    epoch: instance.epoch,
    generated: stats.generated_tokens,
    prompt: stats.prompt_tokens,
    steps: stats.steps.count,
    ranks,
  };
}

/** Records a status; `now` is in milliseconds. */
export function observe(status, now) {
  const ids = new Set(status.instances.map((one) => one.id));
  for (const id of samples.keys()) if (!ids.has(id)) samples.delete(id);
  let rate = 0;
  for (const instance of status.instances) {
    const total = totals(instance);
    let kept = samples.get(instance.id) ?? [];
    const last = kept.at(-1)?.total;
    const isOn = last?.epoch === total?.epoch && last?.generated <= total?.generated;
    if (!isOn) kept = [];
    if (total) kept.push({ now, total });
    samples.set(instance.id, kept.filter((one) => now - one.now <= KEPT_MS));
    rate += tokenRate(instance.id) ?? 0;
  }
  history.push({ now, rate });
  while (history.length > 0 && now - history[0].now > KEPT_MS) history.shift();
}

/** The last sample and the one at the start of the window. */
function span(id, windowMs = WINDOW_MS) {
  const kept = samples.get(id) ?? [];
  const last = kept.at(-1);
  const first = kept.findLast((one) => last.now - one.now >= windowMs) ?? kept[0];
  return first && first !== last ? [first, last] : null;
}

/** Tokens per second that an instance generates now; `null` until known. */
export function tokenRate(id) {
  const found = span(id);
  if (!found) return null;
  const [first, last] = found;
  return (1000 * (last.total.generated - first.total.generated)) / (last.now - first.now);
}

/** Microseconds per step that each rank computed, waited and was idle: over the last half minute if
 * there were steps in it, otherwise since the epoch began. */
export function stepTimes(instance) {
  const last = samples.get(instance.id)?.at(-1);
  if (!last || last.total.steps === 0) return [];
  const first = span(instance.id, KEPT_MS / 2)?.[0];
  const isBusy = first && last.total.steps > first.total.steps;
  const steps = last.total.steps - (isBusy ? first.total.steps : 0);
  return last.total.ranks.map((rank, at) => {
    const before = isBusy ? first.total.ranks[at] : null;
    if (!rank || (isBusy && !before)) return null;
    const per = (field) => (rank[field] - (before?.[field] ?? 0)) / steps;
    return { compute: per("compute"), wait: per("wait"), between: per("between") };
  });
}

/** Bytes per second that ranks send each other now, by pair of nodes. */
export function traffic(status) {
  const pairs = new Map();
  for (const instance of status.instances) {
    const found = span(instance.id);
    if (!found) continue;
    const [first, last] = found;
    instance.ranks.forEach((rank, at) => {
      for (const [peer, sent] of Object.entries(last.total.ranks[at]?.sent ?? {})) {
        const other = instance.ranks[peer];
        if (!other || other.node === rank.node) continue;
        const before = first.total.ranks[at]?.sent[peer] ?? 0;
        const rate = (1000 * (sent - before)) / (last.now - first.now);
        const pair = [rank.node, other.node].sort().join(" ");
        pairs.set(pair, (pairs.get(pair) ?? 0) + rate);
      }
    });
  }
  return pairs;
}
