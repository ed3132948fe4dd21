// Conversations that the node keeps: on two devices, in two tabs, over reloads, moved and removed.

const assert = require("node:assert/strict");
const { readFileSync } = require("node:fs");
const { join } = require("node:path");

const env = process.env;
const PHONE = { viewport: { width: 390, height: 844 }, hasTouch: true,
  extraHTTPHeaders: { "x-forwarded-for": "203.0.113.9" } };

module.exports = ({ open, button, isWhole, lastAnswer, axe, fits }) => {
  const ready = (page) => page.waitForFunction(() => !document.getElementById("send").disabled);
  const ask = async (page, text) => {
    await ready(page);
    await page.locator("#prompt").fill(text);
    await page.keyboard.press("Enter");
    await page.locator(".said.user .body", { hasText: text }).last().waitFor();
  };
  const chat = async (browser, url, options) => {
    const opened = await open(browser, `${url}/#chat`, options);
    await ready(opened.page);
    return opened;
  };
  const item = (page, text) => page.locator("#talks li", { hasText: text });
  const picture = (page, name) => page.screenshot({ path: join(env.SINEW_PICTURES, name) });

  /** A desk and a phone, the same conversation: each sees what the other one asks. */
  async function twoDevicesWriteInTurn(browser) {
    // More turns than a small context has room for need the scripted node.
    const [turns, url] = env.SINEW_PAGE_TURNS ? [Number(env.SINEW_PAGE_TURNS), env.SINEW_DOUBLE] : [8, env.SINEW_URL];
    const desk = await chat(browser, url);
    await button(desk.page, "New").click();
    await ask(desk.page, "Turn 0: who are you?");
    await isWhole(desk.page);
    const phone = await chat(browser, url, { viewport: { width: 390, height: 844 } });
    await item(phone.page, "Turn 0").locator(".open").click();
    for (let turn = 1; turn <= turns; turn += 1) {
      const [asks, sees] = turn % 2 ? [phone.page, desk.page] : [desk.page, phone.page];
      await asks.waitForFunction((count) => document.querySelectorAll(".said").length === count, 2 * turn);
      await ask(asks, `Turn ${turn}: who are you?`);
      await isWhole(asks);
      await sees.locator(".said.user .body", { hasText: `Turn ${turn}:` }).waitFor();
      await sees.waitForFunction((count) => document.querySelectorAll(".said").length === count, 2 * turn + 2);
      await isWhole(sees);
    }
    for (const { page } of [desk, phone]) {
      await page.reload();
      await page.locator(".said.user .body", { hasText: `Turn ${turns}:` }).waitFor();
      assert.equal(await page.locator(".said").count(), 2 * turns + 2);
      await fits(page);
    }
    await picture(phone.page, "turns-phone.png");
    for (const { context, complaints } of [desk, phone]) {
      assert.deepEqual(complaints, []);
      await context.close();
    }
  }

  /** What is being written is found again at any moment, and whole at the end. */
  async function reloadsLoseNothing(browser) {
    const { page, context } = await chat(browser, env.SINEW_DOUBLE);
    await button(page, "New").click();
    for (let moment = 0; moment < 10; moment += 1) {
      await ask(page, `Moment ${moment}.`);
      // Sleeps: each reload is at another moment of an answer of 1.5 s.
      await page.waitForTimeout(moment * 170);
      await page.reload();
      await page.locator(".said.user .body", { hasText: `Moment ${moment}.` }).waitFor();
      await isWhole(page);
      assert.match(await lastAnswer(page).locator(".body").textContent(), /How it works[\s\S]*That is all\.$/);
    }
    assert.equal(await page.locator(".said").count(), 20);
    await context.close();
  }

  /** "New", another conversation, and a closed tab stop no answer. */
  async function anAnswerGoesOnWithoutItsPage(browser) {
    const { page, context } = await chat(browser, env.SINEW_DOUBLE);
    await button(page, "New").click();
    await ask(page, "Go on without me.");
    await button(page, "New").click();
    assert.equal(await page.locator(".said").count(), 0);
    await item(page, "Go on without me.").locator(".dot").waitFor();
    await ask(page, "And this one too.");
    await context.close();
    const next = await chat(browser, env.SINEW_DOUBLE);
    for (const text of ["And this one too.", "Go on without me."]) {
      await item(next.page, text).locator(".open").click();
      await next.page.locator(".said.user .body", { hasText: text }).waitFor();
      await isWhole(next.page);
      assert.match(await lastAnswer(next.page).locator(".body").textContent(), /That is all\.$/);
    }
    await next.context.close();
  }

  /** What a browser kept before nodes did comes to the node, once. */
  async function oldConversationsAreTakenOver(browser) {
    const { page, context } = await open(browser, env.SINEW_DOUBLE);
    const old = [{ id: "3f2c8a90-0000-4000-8000-000000000000", title: "Old boats", at: 1_700_000_000_000, model: "m",
      messages: [{ role: "user", content: "Old boats" },
        { role: "assistant", content: "They **float**.", model: "m", about: "m · 3 tokens" }] }];
    for (let time = 0; time < 2; time += 1) {
      await page.evaluate((talks) => localStorage.setItem("sinew-talks", JSON.stringify(talks)), old);
      await page.goto(`${env.SINEW_DOUBLE}/?${time}#chat`);
      await item(page, "Old boats").waitFor();
      await page.waitForFunction(() => localStorage.getItem("sinew-talks") === null);
    }
    assert.equal(await item(page, "Old boats").count(), 1);
    await item(page, "Old boats").locator(".open").click();
    await lastAnswer(page).locator("strong", { hasText: "float" }).waitFor();
    await context.close();
  }

  /** What is set belongs to a conversation, and is seen. */
  async function settingsBelongToAConversation(browser) {
    const { page, context } = await chat(browser, env.SINEW_URL);
    await button(page, "New").click();
    await page.locator("#chat-options summary").click();
    await page.getByLabel("System prompt").fill("You only say banana.");
    await page.getByLabel("Temperature").fill("0.1");
    await page.getByLabel("Tags, to be found by #tag").fill("fruit, yellow");
    await page.locator("#chat-options summary").click();
    await ask(page, "What do you say?");
    await isWhole(page);
    assert.equal(await page.locator("#chat-marks").textContent(), "system prompt · temperature 0.1");
    await item(page, "What do you say?").locator(".tags", { hasText: "#fruit #yellow" }).waitFor();
    await picture(page, "marked.png");
    await button(page, "New").click();
    assert.equal(await page.locator("#chat-marks").textContent(), "");
    await page.locator("#chat-options summary").click();
    assert.equal(await page.getByLabel("System prompt").inputValue(), "");
    await page.locator("#chat-options summary").click();
    await page.reload();
    await item(page, "What do you say?").locator(".open").click();
    await page.locator("#chat-marks", { hasText: "system prompt" }).waitFor();
    await context.close();
  }

  /** A model that reads text only is sent none, and the conversation lives on. */
  async function aPictureIsRefusedBeforeItIsSent(browser, transfer, png) {
    const { page, context } = await chat(browser, env.SINEW_URL);
    await page.locator(".chat.card").dispatchEvent("drop", { dataTransfer: await transfer(page, [png]) });
    await page.locator("#toast", { hasText: "reads text only" }).waitFor();
    assert.equal(await page.locator("#pictures li").count(), 0);
    await context.close();
  }

  /** A text goes with a message, with its size in tokens before it is sent. */
  async function aFileGoesWithAMessage(browser, transfer) {
    const { page, context, complaints } = await chat(browser, env.SINEW_URL, { viewport: { width: 390, height: 844 } });
    await button(page, "New").click();
    const text = Buffer.from("The boat of note is green.\n```\ncode\n```\n");
    const note = { name: "note.md", base64: text.toString("base64"), type: "text/markdown" };
    const odd = { name: "odd.bin", base64: "AAEC/w==", type: "application/octet-stream" };
    await page.locator(".chat.card").dispatchEvent("drop", { dataTransfer: await transfer(page, [odd, note]) });
    await page.locator("#toast", { hasText: "odd.bin is neither a text nor a picture" }).waitFor();
    await page.locator("#pictures .file", { hasText: /^note\.md \d+ tokens$/ }).waitFor();
    assert.equal(await page.locator("#pictures li").count(), 1);
    await axe(page);
    await ask(page, "Which boat?");
    await isWhole(page);
    const file = page.locator(".said.user details.file");
    await file.locator("summary", { hasText: "note.md" }).click();
    assert.equal(await file.locator("pre").textContent(), `note.md:\n\`\`\`\`\n${text}\n\`\`\`\``);
    await item(page, "Which boat?").waitFor();
    await fits(page);
    await axe(page);
    await picture(page, "file-phone.png");
    await page.reload();
    await page.locator(".said.user details.file").waitFor();
    assert.deepEqual(complaints, []);
    await context.close();
  }

  /** Its text goes along; what cannot be read is named. */
  async function aPdfGoesWithAMessage(browser, transfer) {
    const { page, context, complaints } = await chat(browser, env.SINEW_URL);
    await button(page, "New").click();
    const of = (name, text) => ({ name, base64: Buffer.from(text).toString("base64"), type: "application/pdf" });
    const files = [of("boats.pdf", pdf(["The boat of note", "is green."])), of("scan.pdf", pdf([""])),
      of("broken.pdf", "%PDF-1.7\nnothing of it"), of("none.pdf", "text")];
    for (const [at, told] of [[1, "scan.pdf has no text: its pages are pictures"],
      [2, "broken.pdf is no PDF that can be read"], [3, "none.pdf is no PDF that can be read"]]) {
      await page.locator(".chat.card").dispatchEvent("drop", { dataTransfer: await transfer(page, [files[at]]) });
      await page.locator("#toast", { hasText: told }).waitFor();
    }
    await page.locator(".chat.card").dispatchEvent("drop", { dataTransfer: await transfer(page, [files[0]]) });
    await page.locator("#pictures .file", { hasText: /^boats\.pdf \d+ tokens$/ }).waitFor();
    await ask(page, "Which boat?");
    await isWhole(page);
    const file = page.locator(".said.user details.file");
    assert.equal(await file.locator("pre").textContent(), "boats.pdf:\n```\nThe boat of note\n\nis green.\n```");
    assert.deepEqual(complaints, []);
    await context.close();
  }

  /** A PDF with a line of text on each page. */
  function pdf(lines) {
    const kids = lines.map((_, at) => `${4 + 2 * at} 0 R`).join(" ");
    const objects = ["<< /Type /Catalog /Pages 2 0 R >>",
      `<< /Type /Pages /Kids [${kids}] /Count ${lines.length} >>`,
      "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
      ...lines.flatMap((line, at) => {
        const drawn = line && `BT /F1 24 Tf 72 700 Td (${line}) Tj ET`;
        return [`<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents ${5 + 2 * at} 0 R`
          + " /Resources << /Font << /F1 3 0 R >> >> >>",
          `<< /Length ${drawn.length} >>\nstream\n${drawn}\nendstream`];
      })];
    let text = "%PDF-1.4\n";
    const places = objects.map((object, at) => {
      const place = text.length;
      text += `${at + 1} 0 obj\n${object}\nendobj\n`;
      return `${String(place).padStart(10, "0")} 00000 n \n`;
    });
    const size = objects.length + 1;
    return `${text}xref\n0 ${size}\n0000000000 65535 f \n${places.join("")}`
      + `trailer << /Size ${size} /Root 1 0 R >>\nstartxref\n${text.length}\n%%EOF\n`;
  }

  /** Formulas are drawn; what is none or not known stays as it is written, and nothing else comes of it. */
  async function formulasAreDrawn(browser) {
    const { page, context, complaints } = await open(browser, env.SINEW_DOUBLE);
    const text = ["Mass is $E=mc^2$, \\(\\sqrt{x}\\) too, and $5 or $6 are prices.", "",
      "$$\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}$$", "", "\\[", "\\begin{aligned} a &= b \\\\ ", "+ c &= d \\end{aligned}", "\\]", "",
      "$\\nosuchcommand{x}$ $\\href{javascript:alert(1)}{x}$ $\\includegraphics{https://evil.example/x.png}$",
      "$\\style{position:fixed}{x}$ $\\def\\a{\\a\\a}\\a$"].join("\n");
    const draw = (source) => page.evaluate(async (shown) => {
      const { render } = await import("/assets/markdown.js");
      const place = document.createElement("div");
      place.className = "said assistant";
      place.id = "drawn";
      document.getElementById("drawn")?.remove();
      document.getElementById("content").prepend(place);
      render(place, shown);
    }, source);
    await draw(text);
    await page.locator("#drawn .math.block math").nth(1).waitFor();
    assert.equal(await page.locator("#drawn math").count(), 4);
    assert.equal(await page.locator("#drawn mfrac").count(), 1);
    assert.equal(await page.locator("#drawn mtr").count(), 2);
    const left = await page.locator("#drawn .math:not(:has(math))").allTextContents();
    assert.deepEqual(left, ["$\\nosuchcommand{x}$", "$\\href{javascript:alert(1)}{x}$",
      "$\\includegraphics{https://evil.example/x.png}$", "$\\style{position:fixed}{x}$", "$\\def\\a{\\a\\a}\\a$"]);
    assert.match(await page.locator("#drawn").textContent(), /and \$5 or \$6 are prices\./);
    assert.equal(await page.locator("#drawn").locator("a, img, svg, script, [href], [src]").count(), 0);
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await axe(page, "#drawn");
      await picture(page, `formulas-${colorScheme}.png`);
    }
    assert.deepEqual(complaints, []);
    await context.close();
  }

  /** Searched, exported, forgotten as a whole, imported. */
  async function allAreMovedAndRemoved(browser) {
    const { page, context } = await chat(browser, env.SINEW_DOUBLE);
    // Until one is open, the list has a row for a new one.
    await page.locator(".said").first().waitFor();
    const count = await page.locator("#talks li").count();
    assert.ok(count >= 5, `${count}`);
    await page.locator("#talks-search").fill("without me");
    await page.waitForFunction(() => document.querySelectorAll("#talks li").length === 1);
    await page.locator("#talks-search").fill("");
    await page.waitForFunction((all) => document.querySelectorAll("#talks li").length === all, count);
    await page.locator("#talks-more summary").click();
    await axe(page, ".talks");
    await picture(page, "talks.png");
    const saved = page.waitForEvent("download");
    await button(page, "Export all").click();
    const file = await (await saved).path();
    const all = JSON.parse(readFileSync(file, "utf8")).conversations;
    assert.equal(all.length, count);
    await button(page, "Forget all").click();
    await page.locator("dialog[open]").getByRole("button", { name: "Forget all" }).click();
    await page.waitForFunction(() => document.querySelectorAll("#talks li").length === 1);
    assert.equal(await page.locator(".said").count(), 0);
    const chooser = page.waitForEvent("filechooser");
    await button(page, "Import").click();
    await (await chooser).setFiles(file);
    await page.locator("#toast", { hasText: `${count} conversations came from` }).waitFor();
    await item(page, "Go on without me.").waitFor();
    await context.close();
  }

  /** The number that `sinew page` shows on the desk. */
  const number = async () => {
    const shown = await fetch(`${env.SINEW_URL}/sinew/v1/browsers/number`, { method: "POST", body: "{}",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${env.SINEW_ADMIN}` } });
    return (await shown.json()).number;
  };

  /** The laptop's page shows the desk's conversations, on a phone and in the laptop's own browser. */
  async function aMembersPageShowsThem(browser) {
    const desk = await chat(browser, env.SINEW_URL);
    await button(desk.page, "New").click();
    await ask(desk.page, "Asked at the desk");
    await isWhole(desk.page);
    const phone = await open(browser, `${env.SINEW_LAPTOP}/#pair=${await number()}`, PHONE);
    await phone.page.locator("article.machine").first().waitFor();
    await phone.page.goto(`${env.SINEW_LAPTOP}/#chat`);
    await item(phone.page, "Asked at the desk").locator(".open").click();
    await ask(phone.page, "Asked on the phone");
    await isWhole(phone.page);
    await item(desk.page, "Asked at the desk").locator(".open").click();
    await desk.page.locator(".said.user .body", { hasText: "Asked on the phone" }).waitFor();
    const own = await chat(browser, env.SINEW_LAPTOP);
    assert.equal(await item(own.page, "Asked at the desk").count(), 0, "the laptop has its own");
    await own.page.locator("#talks-more summary", { hasText: "Kept on laptop" }).click();
    await own.page.locator("#home-number").fill("1");
    await own.page.keyboard.press("Enter");
    await own.page.locator("#home-wrong", { hasText: "this is not the number" }).waitFor();
    await axe(own.page, ".talks");
    await fits(own.page);
    await own.page.locator("#home-number").fill(await number());
    await own.page.keyboard.press("Enter");
    await item(own.page, "Asked at the desk").waitFor();
    await own.page.locator("#talks-where", { hasText: "Kept on desk" }).waitFor();
    await picture(own.page, "kept-on-desk.png");
    await own.page.reload();
    await item(own.page, "Asked at the desk").waitFor();
    await own.page.locator("#talks-more summary").click();
    await button(own.page, "Show this node's").click();
    await item(own.page, "Asked at the desk").waitFor({ state: "detached" });
    for (const { context } of [desk, phone, own]) await context.close();
    // The browser logs the wrong number; nothing else went wrong.
    assert.deepEqual([...desk.complaints, ...phone.complaints], []);
  }

  /** By six digits, once, remembered on the device, revoked beside the keys. */
  async function aBrowserIsPaired(browser, sinew) {
    const options = PHONE;
    const desk = await chat(browser, env.SINEW_URL);
    await button(desk.page, "New").click();
    await ask(desk.page, "An answer of the desk's");
    await isWhole(desk.page);
    await desk.context.close();
    const { page, context, complaints } = await open(browser, env.SINEW_URL, options);
    const field = page.locator("#pair-number");
    await field.waitFor();
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await fits(page);
      await axe(page);
      await picture(page, `pairing-${colorScheme}.png`);
    }
    const right = await number();
    await field.fill(right === "000000" ? "111111" : "000000");
    await page.keyboard.press("Enter");
    await page.locator("#pair-wrong", { hasText: "this is not the number" }).waitFor();
    await field.fill(`${right.slice(0, 3)} ${right.slice(3)}`);
    await page.keyboard.press("Enter");
    await page.locator("article.machine").first().waitFor();
    await page.goto(`${env.SINEW_URL}/#chat`);
    await page.reload();
    await ready(page);
    await item(page, "An answer of the desk's").waitFor();
    await button(page, "New").click();
    await ask(page, "Asked once it was paired");
    await isWhole(page);
    const second = await context.newPage();
    await second.goto(`${env.SINEW_URL}/#chat`);
    await item(second, "Asked once it was paired").waitFor();
    const listed = sinew("desk", "keys", "list");
    assert.equal(await listed.ended, 0, listed.told);
    const name = /browser-\S+/.exec(listed.told)[0];
    const revoked = sinew("desk", "keys", "revoke", name);
    assert.equal(await revoked.ended, 0, revoked.told);
    await second.locator("#pair-number").waitFor();
    assert.deepEqual(complaints, []);
    await context.close();
    // The QR code's address has the number.
    const scanned = await open(browser, `${env.SINEW_URL}/#pair=${await number()}`, options);
    await scanned.page.locator("article.machine").first().waitFor();
    assert.ok(!scanned.page.url().includes("pair="), "the number is out of sight");
    await scanned.context.close();
  }

  /** A full context offers to leave the oldest turns out; they stay, and come back. */
  async function aFullContextForgetsTheOldestTurns(browser) {
    const { page, context, complaints } = await chat(browser, env.SINEW_URL);
    await button(page, "New").click();
    for (let turn = 0; turn < 4; turn += 1) {
      await ask(page, `Who are you? ${turn}`);
      await page.waitForFunction((count) => document.querySelectorAll(".said").length === count, 2 * turn + 2);
      await isWhole(page);
    }
    const count = (text) => page.evaluate(async (content) => {
      const body = JSON.stringify({ model: "sinew-demo", messages: [{ role: "user", content }] });
      const headers = { "Content-Type": "application/json" };
      const asked = await fetch("v1/chat/completions/input_tokens", { method: "POST", headers, body });
      return (await asked.json()).input_tokens;
    }, text);
    // Alone it fits the context of 2,048, and beside four turns it does not.
    const each = (await count("boat ".repeat(200)) - await count("boat ".repeat(100))) / 100;
    const long = "boat ".repeat(Math.floor(1900 / each)).trim();
    await page.locator("#prompt").fill(long);
    await page.keyboard.press("Enter");
    const problem = page.locator("#ask-problem", { hasText: /context/ });
    await problem.waitFor();
    assert.equal(await page.locator("#prompt").inputValue(), long, "the question stays");
    assert.equal(await page.locator(".said").count(), 8);
    await axe(page, "#chat");
    await picture(page, "full.png");
    // Twice, if half of the turns is not enough.
    const again = button(page, "Forget the oldest half and ask again");
    await again.click();
    await page.locator(".said.dropped").first().waitFor();
    for (let time = 0; time < 2 && await page.locator(".said").count() < 9; time += 1) {
      await Promise.race([page.waitForFunction(() => document.querySelectorAll(".said").length > 8), again.click()]);
    }
    await page.waitForFunction(() => document.querySelectorAll(".said").length === 10);
    await isWhole(page);
    assert.equal(await page.locator("#prompt").inputValue(), "");
    await axe(page, "#chat");
    await picture(page, "dropped.png");
    assert.deepEqual(complaints, []);
    await context.close();
  }

  /** The node of the page is killed in the middle of an answer, and comes back. */
  async function anAnswerOutlivesItsNode(browser, start) {
    const first = await start("127.0.0.1:0");
    await first.serve();
    const { page, context } = await chat(browser, first.url);
    await page.evaluate(async () => {
      const body = JSON.stringify({ model: "sinew-demo", content: "Tell me all.", settings: { min_tokens: 1800 } });
      await fetch("sinew/v1/chats/ask", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    });
    await item(page, "Tell me all.").locator(".open").click();
    await page.waitForFunction(() => document.querySelector(".said.assistant .body")?.textContent.length > 0);
    const kept = await first.kill();
    await page.locator("#connection", { hasText: "does not answer" }).waitFor();
    const second = await start(new URL(first.url).host);
    await isWhole(page);
    const text = await page.evaluate(async () => {
      const { chats } = await (await fetch("sinew/v1/chats")).json();
      const { conversation } = await (await fetch(`sinew/v1/chats/one?id=${chats[0].id}`)).json();
      return conversation.messages[1].content;
    });
    assert.ok(text.startsWith(kept) && text.length > 1000, `${kept.length} of ${text.length}`);
    assert.equal(await page.locator(".said").count(), 2);
    await context.close();
    await second.kill();
  }

  return { aFullContextForgetsTheOldestTurns, anAnswerOutlivesItsNode, aBrowserIsPaired, aMembersPageShowsThem, twoDevicesWriteInTurn, reloadsLoseNothing, anAnswerGoesOnWithoutItsPage, oldConversationsAreTakenOver,
    settingsBelongToAConversation, aPictureIsRefusedBeforeItIsSent, aFileGoesWithAMessage, aPdfGoesWithAMessage,
    formulasAreDrawn, allAreMovedAndRemoved };
};
