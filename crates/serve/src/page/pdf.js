// The text of a PDF, read by pdf.js in a worker of the browser: a file that would make it slow or
// large ends with its worker. Nothing of the file is run, drawn or fetched.

const TIME_MS_MAX = 60_000;
const FILE_BYTES_MAX = 100_000_000;

/**
 * The text of all pages, an empty line between two. Throws what a person can act on:
 * `error.message` goes on after the file's name.
 */
export async function textOf(file, charsMax) {
  if (file.size > FILE_BYTES_MAX) throw new Error(`is larger than ${FILE_BYTES_MAX / 1e6} MB`);
  const pdfjs = await import("./pdf.min.mjs");
  pdfjs.GlobalWorkerOptions.workerSrc = new URL("pdf.worker.min.mjs", import.meta.url).href;
  const task = pdfjs.getDocument({
    data: await file.arrayBuffer(), disableFontFace: true, enableXfa: false, isEvalSupported: false,
    useSystemFonts: false, useWasm: false, verbosity: 0,
  });
  let timer = 0;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`takes over ${TIME_MS_MAX / 1000} s to read`)),
      TIME_MS_MAX);
  });
  try {
    return await Promise.race([read(task, charsMax), late]);
  } catch (error) {
    throw new Error(reason(error));
  } finally {
    clearTimeout(timer);
    task.destroy();
  }
}

async function read(task, charsMax) {
  const opened = await task.promise;
  const pages = [];
  let chars = 0;
  for (let number = 1; number <= opened.numPages; number += 1) {
    const { items } = await (await opened.getPage(number)).getTextContent();
    const text = items.map(({ str, hasEOL }) => (str ?? "") + (hasEOL ? "\n" : "")).join("");
    chars += text.length;
    if (chars > charsMax) throw new Error(`has over ${charsMax} letters of text`);
    pages.push(text.trim());
  }
  const text = pages.filter(Boolean).join("\n\n");
  if (!text) throw new Error("has no text: its pages are pictures. Send them as pictures");
  return text;
}

function reason(error) {
  if (error.name === "PasswordException") return "is locked by a password";
  if (error.name === "InvalidPDFException") return "is no PDF that can be read";
  return error.message;
}
