#!/usr/bin/env bash
# The pictures of the README, from a real session: two nodes, each with a terminal of its own (tmux),
# paired by a number, with the demo model over both; then the page in a real browser.
#
#     scripts/pictures.sh        writes docs/images/two-machines.svg, page.png and lost-machine.svg
#     scripts/pictures.sh lost   the last of them alone
#
# Takes tmux, Python, Chromium, Node and the npm package that tests/page/run installs; the picture of the
# lost machine takes the model that tests/real/run fetches.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
target=$(realpath "${CARGO_TARGET_DIR:-target}")
cargo build --release --quiet --locked -p sinew
[ -d "$target/page/node_modules" ] || { echo 'run tests/page/run once: it installs the browser driver'; exit 1; }
work=$(mktemp -d)
columns=80
terminal() { tmux -S "$work/tmux" "$@"; }
end() {
    for name in desk laptop; do
        HOME=$work/$name "$target/release/sinew" stop --node >/dev/null 2>&1 || :
    done
    terminal kill-server 2>/dev/null || :
    sleep 1
    rm -rf "$work"
}
trap end EXIT

# Two nodes of one machine cannot both have the usual ports; nothing else is other than on two.
start() { # name, port of the API, port for other nodes
    mkdir -p "$work/$1/bin"
    cat >"$work/$1/bin/sinew" <<EOF
#!/bin/sh
[ "\$1" = up ] && { shift; set -- up --name $1 --threads 1 --api 127.0.0.1:$2 --listen 0.0.0.0:$3 "\$@"; }
exec "$target/release/sinew" "\$@"
EOF
    chmod +x "$work/$1/bin/sinew"
    cp demo-model/sinew-demo.gguf "$work/$1/"
    for session in "$1-up" "$1"; do
        terminal new-session -d -s "$session" -x $columns -y 40 -c "$work/$1" \
            env -i HOME="$work/$1" PATH="$work/$1/bin:$PATH" TERM=xterm-256color LANG=C.UTF-8 \
            PS1='$ ' bash --norc --noprofile
        await "$session" '^\$'
    done
}
shown() { terminal capture-pane -p -t "$1"; }
await() { # name, expression
    for _ in $(seq 200); do
        if shown "$1" | grep -qE "$2"; then return; fi
        sleep 0.1
    done
    echo "$2 did not come:" >&2
    shown "$1" >&2
    exit 1
}
type_in() { terminal send-keys -t "$1" "$2" Enter; }

# Draws what the terminals of both machines show.
draw() { # picture, title of the first machine, of the second
    for name in desk laptop; do
        for session in $name-up $name; do
            terminal capture-pane -e -p -t $session | sed '/^\$ $/d' >"$work/$session.part"
        done
        cat <(sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' "$work/$name-up.part") <(echo) "$work/$name.part" \
            >"$work/$name.txt"
    done
    python3 scripts/terminals_svg.py $columns "$2=$work/desk.txt" "$3=$work/laptop.txt" >"docs/images/$1"
}

start desk 8750 8751
start laptop 8760 8761
for name in desk laptop; do
    type_in $name-up 'sinew up --memory 2GiB'
    await $name-up 'service install'
done
type_in laptop 'sinew join --with desk'
await laptop 'sinew accept'
number=$(shown laptop | grep -oE '[0-9]{3}-[0-9]{3}' | head -1)
await desk-up 'asks to be let in'
type_in desk "sinew accept $number"
await desk 'is in:'
await laptop 'joined desk'

# The second machine is killed while both answer.
lost_machine() {
    cp "$target/real/smollm2-135m.gguf" "$work/desk/"
    type_in desk 'sinew serve smollm2-135m.gguf --nodes 2'
    await desk 'is ready at'
    for session in desk laptop; do
        terminal send-keys -t $session C-l
        terminal clear-history -t $session
    done
    type_in desk 'sinew run smollm2-135m "Why is the sky blue?" --max-tokens 220 --seed 4 --verbose'
    await desk 'The question'
    if shown desk | grep -q 'tokens/s'; then echo 'it was over before the machine was lost' >&2; exit 1; fi
    pkill -9 -P "$(terminal display-message -p -t laptop-up '#{pane_pid}')"
    await desk 'tokens/s'
    sleep 1
    draw lost-machine.svg 'the first machine' 'the second machine, killed'
}
if [ "${1:-}" = lost ]; then
    lost_machine
    exit
fi
type_in desk 'sinew serve sinew-demo.gguf --nodes 2'
await desk 'is ready at'
type_in desk 'sinew run sinew-demo "Who are you?" --verbose'
await desk 'Larkhaven'
type_in laptop 'sinew nodes'
await laptop 'RTT'
type_in laptop 'sinew run sinew-demo "Which boat is blue?" --verbose'
await laptop 'Petrel'
sleep 1
draw two-machines.svg 'the first machine, in two terminals' 'the second machine'

browser=${SINEW_BROWSER:-$(command -v chromium chromium-browser google-chrome chrome | head -1)}
NODE_PATH="$target/page/node_modules" SINEW_BROWSER="$browser" node - <<'EOF'
const { chromium } = require("playwright-core");
(async () => {
  const browser = await chromium.launch({ executablePath: process.env.SINEW_BROWSER, args: ["--no-sandbox"] });
  const page = await browser.newPage({ viewport: { width: 1180, height: 700 }, reducedMotion: "reduce" });
  await page.goto("http://127.0.0.1:8750");
  await page.locator("article.model .pill", { hasText: "ready" }).waitFor();
  const ask = () => page.evaluate(() => fetch("/v1/completions", {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model: "sinew-demo", prompt: "Once", max_tokens: 1500, ignore_eos: true }),
  }).then((answer) => answer.text()));
  for (let at = 0; at < 12; at += 1) await ask();
  await page.waitForTimeout(1200);
  await page.screenshot({ path: "docs/images/page.png" });
  await browser.close();
})();
EOF
lost_machine
ls -l docs/images/two-machines.svg docs/images/page.png docs/images/lost-machine.svg
