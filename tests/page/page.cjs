// What a visitor of the page meets; started by `run`, which tells where the nodes are.

const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const { readFileSync, readdirSync } = require("node:fs");
const { join } = require("node:path");
const { chromium } = require("playwright-core");

const env = process.env;
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const VIEWS = ["cluster", "library", "chat", "events", "connect"];
const WIDTHS = { phone: [390, 844], tablet: [820, 1180], desk: [1440, 900] };
/** Long enough for a machine that is busy with other things. */
const PATIENCE = { timeout: 60_000 };

/** A picture of 64 x 48, in Base64. */
const PICTURE = readFileSync(join(__dirname, "../../fixtures/vision/image-64x48.png")).toString("base64");

const fuzz = require("./fuzz.cjs");

let failed = 0;
/** All that were opened: what a failed check has left open is kept as pictures. */
const pages = [];

async function check(name, act) {
  if (!name.includes(env.SINEW_PAGE_ONLY ?? "")) return;
  try {
    await act();
    console.log(`    ok     ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`    FAILED ${name}: ${error.stack ?? error}`);
    for (const [at, page] of pages.filter((one) => !one.isClosed()).entries()) {
      await page.screenshot({ path: join(env.SINEW_PICTURES, `failed-${failed}-${at}.png`) });
    }
  }
}

/** A page of its own; what it fetches from elsewhere or complains about is a failure. */
async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  pages.push(page);
  page.setDefaultTimeout(PATIENCE.timeout);
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(`error: ${error.message}`));
  page.on("console", (message) => {
    const isOurs = !/Failed to load resource|ERR_CONNECTION|ERR_INCOMPLETE/.test(message.text());
    if (message.type() === "error" && isOurs) complaints.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin) complaints.push(`fetched ${request.url()}`);
  });
  await page.goto(url);
  return { page, context, complaints };
}

/** The one button of this whole name: a name that only contains it is another button's. */
const button = (page, name) => page.getByRole("button", { name, exact: true });
const view = (page, name) => page.locator(".top nav").getByRole("link", { name: new RegExp(`^${name}\\b`) }).click();

/** Checks the page, or the element that a selector names. */
async function axe(page, within = "html") {
  // Run as a tool would, past the page's own policy.
  await page.evaluate(AXE);
  const found = await page.evaluate((selector) => window.axe.run(selector, {
    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
  }), within);
  const told = found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`);
  assert.deepEqual(told, []);
}

/** Nothing is wider than the screen. */
async function fits(page) {
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(over <= 0, `${over} pixels too wide`);
}

async function pictures(browser, url, name) {
  for (const colorScheme of ["light", "dark"]) {
    for (const [size, [width, height]] of Object.entries(WIDTHS)) {
      const options = { viewport: { width, height }, colorScheme, reducedMotion: "reduce" };
      const { page, context, complaints } = await open(browser, url, options);
      await page.locator("article.machine").first().waitFor();
      for (const one of VIEWS) {
        await view(page, one[0].toUpperCase() + one.slice(1));
        await page.waitForTimeout(700);
        await check(`${name}: ${one} at ${width} pixels, ${colorScheme}, is accessible and fits`, async () => {
          await fits(page);
          await axe(page);
        });
        await page.screenshot({
          path: join(env.SINEW_PICTURES, `${name}-${one}-${size}-${colorScheme}.png`),
          fullPage: one !== "chat",
        });
      }
      await check(`${name}: nothing complains at ${width} pixels, ${colorScheme}`, () => assert.deepEqual(complaints, []));
      await context.close();
    }
  }
}

const lastAnswer = (page) => page.locator(".said.assistant").last();
const isWhole = (page) => page.locator('.said.assistant:last-child[aria-busy="false"] .about:not(:empty)').waitFor();

const talks = require("./talks.cjs")({ open, button, isWhole, lastAnswer, axe, fits });

async function chatByKeyboard(page) {
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  for (let at = 0; at < 4; at += 1) await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.hash), "#events");
  await page.keyboard.press("Shift+Tab");
  await page.keyboard.press("Enter");
  await page.locator("#chat").waitFor();
  for (let at = 0; at < 40; at += 1) {
    if (await page.evaluate(() => document.activeElement.id) === "prompt") break;
    await page.keyboard.press("Tab");
  }
  await page.waitForFunction(() => !document.getElementById("send").disabled);
  await page.keyboard.type("Who are you?");
  await page.keyboard.press("Enter");
  await isWhole(page);
  assert.match(await lastAnswer(page).locator(".body").textContent(), /Sinew/);
  assert.match(await lastAnswer(page).locator(".about").textContent(),
    /\d+ tokens · .*tokens\/s · \d+ of \d+ guesses right/);
}

async function editRetryAndKeep(page) {
  await button(page, "Edit").click();
  const field = page.locator(".said.user textarea");
  assert.equal(await field.inputValue(), "Who are you?");
  await field.fill("Which boat is blue?");
  await page.keyboard.press("Enter");
  await page.locator(".said.user .body", { hasText: "Which boat is blue?" }).waitFor();
  await isWhole(page);
  assert.equal(await page.locator(".said").count(), 2);
  assert.match(await lastAnswer(page).textContent(), /Petrel/);
  const versions = page.locator(".said.user .versions");
  assert.equal(await versions.textContent(), "‹2/2›");
  await versions.getByRole("button", { name: "Earlier version" }).click();
  await page.locator(".said.user .body", { hasText: "Who are you?" }).waitFor();
  await versions.getByRole("button", { name: "Later version" }).click();
  await page.locator(".said.user .body", { hasText: "Which boat is blue?" }).waitFor();
  await button(page, "Retry").click();
  await page.locator(".said.assistant .versions", { hasText: "2/2" }).waitFor();
  await isWhole(page);
  assert.equal(await page.locator(".said").count(), 2);
  await page.reload();
  await lastAnswer(page).waitFor();
  assert.equal(await page.locator(".said.user .body").textContent(), "Which boat is blue?");
  await button(page, "New").click();
  assert.equal(await page.locator(".said").count(), 0);
  await button(page, "Which boat is blue?").click();
  await page.waitForFunction(() => document.querySelectorAll(".said").length === 2);
}

/** Titles, the cross, its undo, and a conversation as a file. */
async function aConversationIsRenamedForgottenAndSaved(page) {
  const long = "Which of the many boats in this long question is the blue one of them all?";
  await page.locator("#chat-options summary").click();
  const title = page.getByLabel("Title of this conversation");
  await title.fill(long.slice(0, 60));
  await title.press("Tab");
  const item = page.locator("#talks li", { hasText: "Which of the many boats" });
  await item.waitFor();
  const [list, cross] = [await page.locator("#talks").boundingBox(), await item.locator(".forget").boundingBox()];
  assert.ok(cross.x + cross.width <= list.x + list.width, "the cross is in reach");
  const saved = page.waitForEvent("download");
  await button(page, "Save it as Markdown").click();
  const file = await saved;
  assert.equal(file.suggestedFilename(), "Which-of-the-many-boats-in-this-long-question-is-the-blue-on.md");
  const text = readFileSync(await file.path(), "utf8");
  assert.match(text, /^# Which of.*\n\n## You\n\nWhich boat is blue\?\n\n## .*demo.*\n\n.*Petrel/s);
  await page.locator("#chat-options summary").click();
  await item.locator(".forget").click();
  await item.waitFor({ state: "detached" });
  await button(page, "Undo").click();
  await item.waitFor();
  await page.waitForFunction(() => document.querySelectorAll(".said").length === 2);
}

async function compareAndSteer(browser) {
  const { page, context, complaints } = await owned(browser);
  assert.ok(!page.url().includes(env.SINEW_ADMIN), "the token is out of sight");
  // A second tab of the owner's needs no link.
  const second = await context.newPage();
  await second.goto(env.SINEW_URL);
  await button(second, "Make a code").waitFor();
  await second.close();
  await view(page, "Library");
  await aModelIsLookedFor(page);
  await plansUnfoldInTheirCard(page);
  await aModelIsDropped(page);
  await page.getByLabel(SEARCH).fill(env.SINEW_MODEL);
  await button(page, "Compare plans").click();
  await page.locator(".plan[data-best]").waitFor();
  assert.match(await page.locator(".plan[data-best] .who").textContent(), /desk \d.*iB/);
  assert.ok(await page.locator(".plan .why li").count() >= 2);
  await page.screenshot({ path: join(env.SINEW_PICTURES, "plans.png"), fullPage: true });
  await aDownloadIsShownAndCancelled(page);
  await aPresetIsKept(page);
  await view(page, "Cluster");
  await button(page, "Make a code").click();
  await page.locator("#invite-code", { hasText: /sinew join sinew-/ }).waitFor();
  assert.deepEqual(complaints, []);
  await context.close();
}

const SEARCH = /^Search, or name any model/;

/** What there is, what a model on the hub would do here, and a download that a terminal began. */
async function aModelIsLookedFor(page) {
  const cards = page.locator("#library-list > li");
  await page.locator("#library-room", { hasText: /2 nodes have .* of memory free/ }).waitFor();
  // What is served comes first, with what it can be told; then the largest that fit.
  await cards.first().locator(".pill", { hasText: "served" }).waitFor();
  await cards.first().getByRole("button", { name: /^Stop/ }).waitFor();
  assert.equal(await cards.count(), 7);
  const sizes = (await cards.locator(":scope > .hint:visible").allTextContents()).map(parseBytes);
  assert.equal(sizes.length, 6);
  assert.ok(sizes.every((size, at) => at === 0 || size <= sizes[at - 1]), `${sizes}`);
  await page.getByRole("button", { name: /^Show all \d+/ }).click();
  assert.ok(await cards.count() > 30);
  await page.getByLabel(SEARCH).fill("qwen3 8b");
  await cards.filter({ hasText: "qwen3:8b" }).getByText(/about 4.*iB, on the hub: /).waitFor();
  assert.ok(await cards.count() < 10);
  await page.getByLabel(SEARCH).fill("demo gguf");
  assert.equal(await page.locator("#hub-list li").count(), 0, "the hub is not asked by itself");
  await button(page, "Search the hub for “demo gguf”").click();
  await page.locator("#hub-list li", { hasText: "org/Demo-GGUF" }).getByText("1200 downloads, changed 2026-11-27").waitFor();
  await page.getByLabel(SEARCH).fill("no such thing");
  assert.equal(await page.locator("#hub-list li").count(), 0);
  await button(page, "Search the hub for “no such thing”").click();
  await page.locator("#hub-state", { hasText: "The hub has none." }).waitFor();
  await page.getByLabel(SEARCH).fill("demo");
  await button(page, "Search the hub for “demo”").click();
  await button(page, "Load org/Demo-GGUF of the hub").click();
  await page.locator("#load-state", { hasText: /It is on no disk yet.*sinew-demo, 6\.6 MiB/ }).waitFor();
  await page.locator(".plan[data-best] button", { hasText: "Download and load this way" }).waitFor();
  await page.screenshot({ path: join(env.SINEW_PICTURES, "library.png"), fullPage: true });
  const pull = sinew("desk", "pull", "org/Demo-GGUF");
  const row = page.locator("#downloads li", { hasText: "org/Demo-GGUF" });
  await row.getByText(/downloading, /).waitFor();
  await button(page, "Pause the download of org/Demo-GGUF").click();
  await row.getByText(/paused, .* of 6\.6 MiB/).waitFor();
  assert.notEqual(await pull.ended, 0, pull.told);
  await page.reload();
  await row.getByText(/paused, .* of 6\.6 MiB/).waitFor();
  await axe(page);
  await page.screenshot({ path: join(env.SINEW_PICTURES, "paused.png"), fullPage: true });
  await button(page, "Go on with the download of org/Demo-GGUF").click();
  await row.getByText(/downloading, /).waitFor();
  await button(page, "Pause the download of org/Demo-GGUF").click();
  await row.getByText(/paused, /).waitFor();
  await button(page, "Hide the download of org/Demo-GGUF").click();
  await row.waitFor({ state: "detached" });
  await view(page, "Cluster");
  await view(page, "Library");
  await page.getByLabel(SEARCH).fill("demo-gguf");
  const half = cards.filter({ hasText: /of 6\.6 MiB, not whole/ });
  await half.getByRole("button", { name: /^Delete what has come of / }).click();
  await button(page, "Delete it").click();
  await half.waitFor({ state: "detached" });
}

/** Of a card's `about 4.7 GiB, ...`. */
function parseBytes(text) {
  const [, size, unit] = /about ([\d.]+) (.)iB/.exec(text);
  return Number(size) * 1024 ** "KMGT".indexOf(unit);
}

async function plansUnfoldInTheirCard(page) {
  const card = page.locator("#library-list > li", { hasText: "sinew-demo" });
  assert.equal(await card.getByRole("button", { name: /^Load/ }).count(), 0, "it is served");
  await page.getByLabel(SEARCH).fill("sinew-demo");
  await button(page, "Compare plans").click();
  const best = card.locator(".plan[data-best]");
  await best.waitFor();
  assert.ok(await best.evaluate((plan) => {
    const { top, bottom } = plan.getBoundingClientRect();
    return top >= 0 && bottom <= innerHeight && plan.contains(document.activeElement);
  }), "the recommended one is in view and has the focus");
  await page.screenshot({ path: join(env.SINEW_PICTURES, "unfolded.png"), fullPage: true });
  await axe(page);
  // A card that a search hides takes no plan along.
  await page.getByLabel(SEARCH).fill("no such thing");
  await page.locator("#load + #load-panel .plan[data-best]").waitFor();
}

/** A file that the node knows is planned; of another, its path is asked for. */
async function aModelIsDropped(page) {
  const drop = async (name, size) => {
    const files = [{ name, base64: Buffer.alloc(size).toString("base64"), type: "" }];
    await page.locator("#chat").dispatchEvent("drop", { dataTransfer: await transfer(page, files) });
  };
  await view(page, "Chat");
  await drop("elsewhere.gguf", 10);
  await page.locator("#toast", { hasText: "do not say where elsewhere.gguf lies" }).waitFor();
  await page.locator("#library").waitFor();
  assert.equal(await page.getByLabel(SEARCH).inputValue(), "elsewhere.gguf");
}

async function aPresetIsKept(page) {
  await view(page, "Chat");
  await page.locator("#chat-options summary").click();
  await page.getByLabel("System prompt").fill("You are a guide.");
  await page.getByLabel(/^Name of a preset/).fill("guide");
  await button(page, "Keep").click();
  await page.locator("#toast", { hasText: "guide is listed among the models" }).waitFor();
  await axe(page, "#chat-options");
  await page.getByLabel("System prompt").fill("");
  await page.locator("#chat-model option", { hasText: "guide" }).waitFor({ state: "attached" });
  await view(page, "Cluster");
}

/** The node's answer is played: nothing but the nodes is reached, and none of them downloads. */
async function aDownloadIsShownAndCancelled(page) {
  await page.evaluate((real) => {
    window.realFetch = window.fetch;
    const line = JSON.stringify({ status: "pulling", instance: "", ...real });
    window.fetch = (path, options) => {
      if (path !== "sinew/v1/serve") return window.realFetch(path, options);
      const body = new ReadableStream({
        start(controller) {
          controller.enqueue(new TextEncoder().encode(`${line}\n`));
          options.signal.addEventListener("abort", () => controller.error(options.signal.reason));
        },
      });
      return Promise.resolve(new Response(body));
    };
  }, { done_bytes: 1 << 20, total_bytes: 1 << 22, reason: "Q4_K_M fits" });
  await page.locator(".plan[data-best] button").click();
  const state = page.locator("#load-state");
  await state.getByText("pulling, 1.0 MiB of 4.0 MiB. Q4_K_M fits").waitFor();
  assert.equal(await page.getByRole("progressbar", { name: "Loaded" }).getAttribute("value"), "25");
  await button(page, "Cancel").click();
  await state.getByText("goes on from there").waitFor();
  assert.ok(await page.locator("#load-cancel").isHidden());
  await page.evaluate(() => { window.fetch = window.realFetch; });
}

/** A command of one of the nodes; `told` has all that it says. */
function sinew(node, ...args) {
  const child = spawn(env.SINEW_PROGRAM, [...args, "--data-dir", join(env.SINEW_DATA, node)]);
  const running = { told: "", child };
  for (const stream of [child.stdout, child.stderr]) {
    stream.on("data", (data) => { running.told += data; });
  }
  running.ended = new Promise((resolve) => { child.on("exit", resolve); });
  return running;
}

/** A node of its own, at this address: what it has written of an answer is what `kill` resolves to. */
async function solo(api) {
  const running = sinew("solo", "up", "--name", "solo", "--api", api, "--listen", "127.0.0.1:0", "--threads", "1");
  const url = await new Promise((resolve, reject) => {
    const look = setInterval(() => {
      const found = /(http:\/\/127[^ ]*)/.exec(running.told);
      if (found) {
        clearInterval(look);
        resolve(found[1]);
      }
    }, 50);
    running.ended.then(() => reject(new Error(running.told)));
  });
  const serve = async () => {
    const serving = sinew("solo", "serve", env.SINEW_MODEL);
    assert.equal(await serving.ended, 0, serving.told);
  };
  const kill = async () => {
    running.child.kill("SIGKILL");
    await running.ended;
    const folder = join(env.SINEW_DATA, "solo", "chats");
    const draft = readdirSync(folder).find((name) => name.endsWith(".draft"));
    if (!draft) return "";
    const lines = readFileSync(join(folder, draft), "utf8").split("\n").slice(0, -1);
    return lines.map((line) => JSON.parse(line).text).join("");
  };
  return { url, serve, kill };
}

/** A tab that shows the page already, into which the owner's address is pasted. */
async function owned(browser) {
  const opened = await open(browser, env.SINEW_URL);
  const paste = (hash) => { location.hash = hash; };
  await Promise.all([opened.page.waitForEvent("load"), opened.page.evaluate(paste, `admin=${env.SINEW_ADMIN}`)]);
  return opened;
}

/** The owner's rights come back by a bookmark, with no tab open that has them. */
async function aBrowserIsRemembered(browser) {
  const { page, context, complaints } = await owned(browser);
  await view(page, "Connect");
  await button(page, "Remember this browser").click();
  await page.locator("#toast", { hasText: "is remembered" }).waitFor();
  await page.close();
  const again = await context.newPage();
  await again.goto(`${env.SINEW_URL}/#cluster`);
  await again.waitForFunction(() => sessionStorage.getItem("sinew-admin-token") !== null);
  await again.locator("[data-admin]:visible").first().waitFor();
  assert.deepEqual(complaints, []);
  await context.close();
}

const machine = (page, name) => page.locator("article.machine", { has: page.getByRole("heading", { name, exact: true }) });

async function until(act) {
  const began = Date.now();
  for (;;) {
    const found = act();
    if (found) return found;
    assert.ok(Date.now() - began < PATIENCE.timeout, "it did not come");
    await new Promise((resolve) => { setTimeout(resolve, 100); });
  }
}

/** Everything by keyboard: the number, Enter, and the questions that are asked back. */
async function aMachineIsLetIn(browser) {
  const { page, context, complaints } = await owned(browser);
  const desk = (await (await fetch(`${env.SINEW_URL}/sinew/v1/status`)).json()).nodes[0].address;
  const ask = () => sinew("studio", "join", "--peer", desk);
  const refused = ask();
  await button(page, "Refuse studio").focus();
  await page.keyboard.press("Enter");
  assert.notEqual(await refused.ended, 0, refused.told);
  await page.locator(".asking").waitFor({ state: "detached" });

  const asked = ask();
  const number = (await until(() => /\b(\d{3})-(\d{3})\b/.exec(asked.told))).slice(1).join("");
  const field = page.getByLabel("The number that it shows");
  await field.focus();
  assert.equal(await page.locator("#notices p").count(), 0, "it is told once");
  await page.screenshot({ path: join(env.SINEW_PICTURES, "asking.png"), fullPage: true });
  await page.keyboard.type("12345");
  await page.keyboard.press("Enter");
  await page.locator("#toast", { hasText: "six digits" }).waitFor();
  await field.fill(number);
  await page.keyboard.press("Enter");
  await page.locator("#toast", { hasText: "studio is in: the cluster has 3 machines" }).waitFor();
  assert.equal(await asked.ended, 0, asked.told);
  await machine(page, "studio").locator(".pill", { hasText: "live" }).waitFor();

  await button(page, "Remove studio").focus();
  await page.keyboard.press("Enter");
  await page.getByRole("dialog", { name: "Remove studio from the cluster?" }).waitFor();
  await button(page, "Remove it").focus();
  await page.keyboard.press("Enter");
  await machine(page, "studio").waitFor({ state: "detached" });
  assert.deepEqual(complaints, []);
  await context.close();
}

/** The question that a button asks: escaped, then cancelled; its button has the focus again. */
async function noIsTheFirstAnswer(page, name, question) {
  const sent = [];
  page.on("request", (request) => { if (request.method() === "POST") sent.push(request.url()); });
  const dialog = page.getByRole("dialog", { name: question });
  const focused = () => page.evaluate(() => document.activeElement.textContent);
  const hasFocusAgain = () => page.waitForFunction(
    (label) => document.activeElement.getAttribute("aria-label") === label, name);
  for (const answer of ["Escape", "Enter"]) {
    await button(page, name).focus();
    await page.keyboard.press("Enter");
    await dialog.waitFor();
    assert.equal(await focused(), "Cancel");
    if (answer === "Escape") {
      for (const colorScheme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme });
        await axe(page);
        await page.screenshot({ path: join(env.SINEW_PICTURES, `question-${colorScheme}.png`) });
      }
      // Beside the dialog there is only the browser itself, for which the body stands.
      for (let at = 0; at < 5; at += 1) {
        await page.keyboard.press("Tab");
        assert.ok(await page.evaluate(() => Boolean(document.activeElement.closest("dialog"))
          || document.activeElement === document.body), await focused());
      }
    }
    await page.keyboard.press(answer);
    await dialog.waitFor({ state: "hidden" });
    await hasFocusAgain();
  }
  assert.deepEqual(sent, []);
}

async function aMachineIsDrained(browser) {
  const { page, context, complaints } = await owned(browser);
  await page.locator("article.model .sub", { hasText: "on 2 machines" }).waitFor();
  await noIsTheFirstAnswer(page, "Drain laptop", "Drain laptop?");
  await button(page, "Drain laptop").click();
  await button(page, "Drain it").click();
  await machine(page, "laptop").locator(".pill", { hasText: "drained" }).waitFor();
  await page.locator("article.model .sub", { hasText: "on 1 machine" }).waitFor();
  await page.screenshot({ path: join(env.SINEW_PICTURES, "drained.png"), fullPage: true });
  await button(page, "Undrain laptop").focus();
  await page.keyboard.press("Enter");
  await machine(page, "laptop").locator(".pill", { hasText: "live" }).waitFor();
  await page.locator("article.model .sub", { hasText: "on 2 machines" }).waitFor({ timeout: 180_000 });
  assert.deepEqual(complaints, []);
  await context.close();
}

/** Begun in a terminal, on another machine. */
async function aDownloadElsewhereIsSeen(page) {
  const pull = sinew("laptop", "pull", "org/Demo-GGUF");
  const row = page.locator("#downloads li", { hasText: "org/Demo-GGUF" });
  await row.getByText("to laptop").waitFor();
  await row.getByText(/downloading, .* of 6\.6 MiB, .*\/s/).waitFor();
  await page.screenshot({ path: join(env.SINEW_PICTURES, "download.png"), fullPage: true });
  assert.equal(await pull.ended, 0, pull.told);
  await page.locator("#downloads").waitFor({ state: "hidden" });
}

/** The page that began it is closed in the middle of it: the node has it, and serves it. */
async function aDownloadGoesOnWithoutItsTab(browser) {
  const first = await owned(browser);
  await view(first.page, "Library");
  await first.page.getByLabel(SEARCH).fill("org/Demo-GGUF");
  await button(first.page, "Compare plans").click();
  await button(first.page, "Download and load this way").click();
  await first.page.locator("#load-state", { hasText: /pulling, .* of / }).waitFor();
  await first.context.close();
  const { page, context } = await owned(browser);
  await page.locator("#downloads-count", { hasText: "1" }).waitFor();
  await view(page, "Library");
  await page.locator("#downloads li", { hasText: "org/Demo-GGUF" }).getByText(/downloading/).waitFor();
  await view(page, "Cluster");
  await page.locator("article.model", { hasText: /Demo-GGUF/ }).locator(".pill", { hasText: "ready" }).waitFor();
  await context.close();
}

async function aNodeIsKilled(page) {
  await view(page, "Cluster");
  await page.locator(".pill", { hasText: "ready" }).first().waitFor();
  assert.equal(await page.locator("article.machine").count(), 2);
  process.kill(Number(env.SINEW_VICTIM), "SIGKILL");
  await page.locator("article.machine .pill", { hasText: "lost" }).waitFor();
  await page.locator("#latest li", { hasText: "laptop was lost" }).first().waitFor();
  await page.locator("article.model .pill", { hasText: "ready" }).waitFor();
  await page.locator("article.model .sub", { hasText: "on 1 machine" }).waitFor();
  await page.screenshot({ path: join(env.SINEW_PICTURES, "lost.png"), fullPage: true });
  await view(page, "Events");
  for (const text of ["laptop was lost", "moves from", "is ready on desk"]) {
    await page.locator("#timeline li", { hasText: text }).first().waitFor();
  }
  await page.getByLabel("problems only").check();
  assert.equal(await page.locator("#timeline [data-tone=good]").count(), 0);
  await view(page, "Chat");
  await button(page, "New").click();
  await page.locator("#prompt").fill("Which boat is blue?");
  await page.keyboard.press("Enter");
  await isWhole(page);
  assert.match(await lastAnswer(page).textContent(), /Petrel/);
}

async function hostile(browser) {
  const { page, context, complaints } = await open(browser, `${env.SINEW_DOUBLE}/#chat`);
  await page.waitForFunction(() => !document.getElementById("send").disabled);
  await page.locator("#prompt").fill("Go on.");
  await page.keyboard.press("Enter");
  await isWhole(page);
  const answer = lastAnswer(page);
  assert.match(await answer.locator(".thoughts").textContent(), /sketch/);
  assert.equal(await answer.locator(".thoughts").getAttribute("open"), null);
  assert.equal(await answer.locator("img, script, iframe, form, svg, style, object, [onerror], [onclick]").count(), 0);
  const text = await answer.locator(".body").textContent();
  for (const part of ["<img src=x onerror=alert(1)>", "<script>alert(2)</script>", "javascript:alert(3)"]) {
    assert.ok(text.includes(part), `${part} is shown as it is`);
  }
  const links = await answer.locator(".body a").evaluateAll((all) => all.map((one) => [one.protocol, one.rel, one.target]));
  assert.ok(links.length >= 1);
  for (const link of links) assert.deepEqual(link, ["https:", "noopener noreferrer nofollow", "_blank"]);
  for (const tag of ["h4", "strong", "ul li", "ol li", "pre code", "table td", "blockquote"]) {
    assert.ok(await answer.locator(`.md ${tag}`).count() > 0, tag);
  }
  for (const [kind, text] of [["keyword", "fn"], ["string", '"hello from {} machines"'], ["number", "3"]]) {
    assert.equal(await answer.locator(`pre .${kind}`).textContent(), text);
  }
  for (const colorScheme of ["dark", "light"]) {
    await page.emulateMedia({ colorScheme });
    // The order of headings is the model's own.
    await axe(page, ".said.assistant .code");
  }
  assert.deepEqual(complaints, []);
  await page.screenshot({ path: join(env.SINEW_PICTURES, "answer.png") });
  await page.locator("#prompt").fill("And again.");
  await page.keyboard.press("Enter");
  await button(page, "Stop").click();
  await page.locator(".about", { hasText: "stopped" }).waitFor();
  await context.close();
}

/** Files in a transfer, as a drop or a paste has them: `{ name, base64, type }`. */
const transfer = (page, files) => page.evaluateHandle((all) => {
  const made = new DataTransfer();
  for (const { name, base64, type } of all) {
    const bytes = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
    made.items.add(new File([bytes], name, { type }));
  }
  return made;
}, files);

async function picturesAreDroppedPastedAndKept(browser) {
  const { page, context, complaints } = await open(browser, `${env.SINEW_DOUBLE}/#chat`, { viewport: { width: 360, height: 740 } });
  await page.waitForFunction(() => !document.getElementById("send").disabled);
  await button(page, "New").click();
  const waiting = page.locator("#pictures li");
  const count = (number) => page.waitForFunction((wanted) => document.querySelectorAll("#pictures li").length === wanted, number);
  const png = (name) => ({ name, base64: PICTURE, type: "image/png" });
  await page.locator(".chat.card").dispatchEvent("drop", { dataTransfer: await transfer(page, [png("a.png"), png("b.png")]) });
  await count(2);
  const pasted = await transfer(page, [png("c.png")]);
  await page.evaluate((clipboardData) => {
    document.getElementById("prompt").dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
  }, pasted);
  await count(3);
  assert.deepEqual(await waiting.locator("img").evaluateAll((all) => all.map((one) => one.alt)), ["a.png", "b.png", "c.png"]);
  await fits(page);
  await axe(page);
  await page.screenshot({ path: join(env.SINEW_PICTURES, "previews.png") });
  await button(page, "Remove b.png").focus();
  await page.keyboard.press("Enter");
  await count(2);
  const chooser = page.waitForEvent("filechooser");
  await button(page, "Add a file").focus();
  await page.keyboard.press("Enter");
  await (await chooser).setFiles({ name: "no.png", mimeType: "image/png", buffer: Buffer.from("no picture") });
  await page.locator("#toast", { hasText: "no.png is no picture" }).waitFor();
  await count(2);

  const large = await page.evaluate(() => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [4096, 1024];
    return canvas.toDataURL("image/png").split(",")[1];
  });
  await page.locator(".chat.card").dispatchEvent("drop", {
    dataTransfer: await transfer(page, [{ name: "large.png", base64: large, type: "image/png" }]),
  });
  await count(3);
  assert.deepEqual(await waiting.last().locator("img").evaluate((one) => [one.naturalWidth, one.naturalHeight]), [2048, 512]);
  await button(page, "Remove large.png").click();

  const request = page.waitForRequest("**/sinew/v1/chats/ask");
  await page.locator("#prompt").fill("What is this?");
  await page.keyboard.press("Enter");
  const { content } = (await request).postDataJSON();
  const address = `data:image/png;base64,${PICTURE}`;
  assert.deepEqual(content, [
    { type: "image_url", image_url: { url: address } },
    { type: "image_url", image_url: { url: address } },
    { type: "text", text: "What is this?" },
  ]);
  await isWhole(page);
  assert.ok(await page.locator("#pictures").isHidden());
  assert.equal(await page.locator(".said.failed").count(), 0, await lastAnswer(page).locator(".about").textContent());
  await fits(page);
  await page.screenshot({ path: join(env.SINEW_PICTURES, "pictures.png") });
  await page.reload();
  await page.locator(".said.user .pictures img").last().waitFor();
  assert.equal(await page.locator(".said.user .pictures img").count(), 2);
  await button(page, "Edit").click();
  await page.locator(".said.user textarea").fill("And this?");
  const again = page.waitForRequest("**/sinew/v1/chats/ask");
  await page.keyboard.press("Enter");
  assert.equal((await again).postDataJSON().content.length, 3);
  await isWhole(page);
  assert.deepEqual(complaints, []);
  await context.close();
}

/** Code of each kind of language as `[kind, text]`, with what is plain left out. */
async function codeIsColoured(browser) {
  const { page, context } = await open(browser, env.SINEW_DOUBLE);
  const cases = [
    ["rust", "let c: &'a str = 'x'; // it's", ["keyword let", "string 'x'", "comment // it's"]],
    ["python", 'def f():\n  """a\nb"""\n  return 0x1f # c', ["keyword def", 'string """a\nb"""', "keyword return",
      "number 0x1f", "comment # c"]],
    ["C++", "int x1 = 1.5; /* return\n2 */", ["keyword int", "number 1.5", "comment /* return\n2 */"]],
    ["js", "const a = `for ${\n1}`; in_ + b", ["keyword const", "string `for ${\n1}`"]],
    ["sql", "Select 'it''s' -- 1", ["keyword Select", "string 'it'", "string 's'", "comment -- 1"]],
    ["bash", 'echo "${#a} \\" b" # c', ['string "${#a} \\" b"', "comment # c"]],
    ["html", '<img src=x onerror="alert(1)"> it\'s <!-- <b> -->', ["keyword <img", 'string "alert(1)"', "keyword >",
      "comment <!-- <b> -->"]],
    ["json", '{"a//": true}', ['string "a//"', "keyword true"]],
    ["rust,ignore", "fn main", ["keyword fn"]],
    ["constructor", "return 1", []],
    ["", "return 1", []],
  ];
  for (const [language, text, expected] of cases) {
    const shown = await page.evaluate(async ([info, code]) => {
      const { render } = await import("/assets/markdown.js");
      const [whole, open] = [document.createElement("div"), document.createElement("div")];
      render(whole, `\`\`\`${info}\n${code}\n\`\`\``);
      render(open, `\`\`\`${info}\n${code}`);
      const found = [...whole.querySelectorAll("code *")].map((one) => `${one.tagName} ${one.className} ${one.textContent}`);
      return { found, text: whole.querySelector("code").textContent, open: open.querySelectorAll("code *").length };
    }, [language, text]);
    assert.deepEqual(shown, { found: expected.map((one) => `SPAN ${one}`), text, open: 0 });
  }
  await context.close();
}

/** What a parser must bear: long, deep and unclosed marks, in a blink. */
async function markdownIsQuick(browser) {
  const { page, context } = await open(browser, env.SINEW_DOUBLE);
  const took = await page.evaluate(async () => {
    const { render } = await import("/assets/markdown.js");
    const texts = ["[".repeat(15_000), "*".repeat(15_000), "_a ".repeat(6000), "> ".repeat(5000),
      "`".repeat(15_000), "![](".repeat(4000), `${" ".repeat(2000)}- `.repeat(50), "|".repeat(9000) + "\n|-|",
      "**a ".repeat(4000), ...["rust", "js", "c", "python", "html", "sql", "json"].flatMap((language) => [
        "'", '"', "'\\", '"\\', "`", "/*", "<!--", '"""', "\n# '", "a1 ", "<a =\"", "r#\"", "1.", "9"].map(
        (code) => `\`\`\`${language}\n${code.repeat(29_000 / code.length)}\n\`\`\``)),
      "https://".repeat(2000), "\\".repeat(9000), "- ".repeat(4000), "~~a".repeat(4000)];
    const times = [];
    for (const text of texts) {
      const place = document.createElement("div");
      const began = performance.now();
      render(place, text);
      times.push(performance.now() - began);
    }
    return Math.max(...times);
  });
  // Each takes a tenth of a second, or two where others use the processor: what grows with the
  // square takes minutes.
  assert.ok(took < 3000, `${took} ms`);
  await context.close();
}

async function textsAreDrawnInLinearTime(browser) {
  const { page, context } = await open(browser, env.SINEW_DOUBLE);
  page.setDefaultTimeout(600_000);
  await fuzz(page);
  await context.close();
}

async function main() {
  const browser = await chromium.launch({ executablePath: env.SINEW_BROWSER, args: ["--no-sandbox"] });
  try {
    console.log("page:");
    await check("hostile output stays text", () => hostile(browser));
    await check("pictures are dropped, pasted and kept", () => picturesAreDroppedPastedAndKept(browser));
    await check("code is coloured by its language", () => codeIsColoured(browser));
    await check("no text makes the page slow", () => markdownIsQuick(browser));
    await check("hostile texts are drawn in linear time", () => textsAreDrawnInLinearTime(browser));
    await check("formulas are drawn", () => talks.formulasAreDrawn(browser));
    await check("a reload loses nothing of an answer", () => talks.reloadsLoseNothing(browser));
    await check("an answer goes on without its page", () => talks.anAnswerGoesOnWithoutItsPage(browser));
    await check("an old browser's conversations are taken over", () => talks.oldConversationsAreTakenOver(browser));
    await check("conversations are moved and removed", () => talks.allAreMovedAndRemoved(browser));
    await pictures(browser, env.SINEW_DOUBLE, "many");
    const { page, context, complaints } = await open(browser, env.SINEW_URL);
    await page.locator("article.model .pill", { hasText: "ready" }).waitFor();
    await check("a chat by keyboard alone", () => chatByKeyboard(page));
    await check("edit, retry, and what is kept", () => editRetryAndKeep(page));
    await check("a title, a file, and a conversation that comes back", () => aConversationIsRenamedForgottenAndSaved(page));
    await check("two devices write in turn", () => talks.twoDevicesWriteInTurn(browser));
    await check("settings belong to a conversation", () => talks.settingsBelongToAConversation(browser));
    await check("a picture is refused before it is sent", () => talks.aPictureIsRefusedBeforeItIsSent(browser, transfer,
      { name: "a.png", base64: PICTURE, type: "image/png" }));
    await check("a file goes with a message", () => talks.aFileGoesWithAMessage(browser, transfer));
    await check("a PDF goes with a message", () => talks.aPdfGoesWithAMessage(browser, transfer));
    await check("a full context forgets the oldest turns", () => talks.aFullContextForgetsTheOldestTurns(browser));
    await check("an answer outlives its node", () => talks.anAnswerOutlivesItsNode(browser, solo));
    await check("a browser is paired", () => talks.aBrowserIsPaired(browser, sinew));
    await check("a browser is remembered", () => aBrowserIsRemembered(browser));
    await check("another member's page shows conversations", () => talks.aMembersPageShowsThem(browser));
    await check("plans are compared, and the owner steers", () => compareAndSteer(browser));
    await check("a machine is refused, let in and removed", () => aMachineIsLetIn(browser));
    await check("a download elsewhere is seen", async () => {
      await view(page, "Library");
      await aDownloadElsewhereIsSeen(page);
    });
    await check("a machine is drained and has work again", () => aMachineIsDrained(browser));
    await pictures(browser, env.SINEW_URL, "live");
    await pictures(browser, `${env.SINEW_URL}/#admin=${env.SINEW_ADMIN}`, "owner");
    await check("a node is killed while the page looks on", () => aNodeIsKilled(page));
    await check("a download goes on without its tab", () => aDownloadGoesOnWithoutItsTab(browser));
    await check("nothing complains", () => assert.deepEqual(complaints, []));
    await context.close();
  } finally {
    await browser.close();
  }
  if (failed > 0) {
    console.log(`page: ${failed} failed`);
    process.exit(1);
  }
  console.log("page: all checks passed");
}

main();
