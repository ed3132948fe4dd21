// A conversation's messages as a tree: each follows another one, and another answer or an edited
// question is a further branch. Messages are numbered from 1; 0 is the beginning.

export const after = ({ messages }, number) => messages[number - 1]?.after ?? number - 1;

export const head = ({ head: number, messages }) => number || messages.length;

/** The numbers of the messages from the beginning to the end of the branch that is shown. */
export function path(conversation) {
  const numbers = [];
  for (let at = head(conversation); at > 0; at = after(conversation, at)) numbers.unshift(at);
  return numbers;
}

/** The messages that stand in one place: other answers, or edited questions. */
export function versions(conversation, number) {
  const at = after(conversation, number);
  const { role } = conversation.messages[number - 1];
  const all = conversation.messages.map((_, index) => index + 1);
  return all.filter((one) => after(conversation, one) === at
    && conversation.messages[one - 1].role === role);
}

/** A content's text, without pictures and files. */
export function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  const texts = content.filter((part) => !part?.sinew_file).map((part) => part?.text);
  return texts.filter((text) => typeof text === "string" && text).join("\n");
}

/** The pictures and files of a content: `{ part, address }` or `{ part, name, text }`. */
export function attachedTo(content) {
  if (!Array.isArray(content)) return [];
  return content.flatMap((part) => {
    const address = part?.image_url?.url ?? part?.image_url;
    // Only what the user gave; an address of elsewhere is not fetched.
    const isPicture = typeof address === "string" && /^data:image[/;]/.test(address);
    if (isPicture) return [{ part, address }];
    const isFile = part?.sinew_file && typeof part.text === "string";
    return isFile ? [{ part, name: String(part.sinew_file), text: part.text }] : [];
  });
}

/** A question's content for the node: what is attached, then the text. */
export function contentOf(text, parts) {
  if (parts.length === 0) return text;
  return text ? [...parts, { type: "text", text }] : parts;
}

/** The branch that is shown, as Markdown. */
export function markdown(conversation, title) {
  const parts = path(conversation).map((number) => {
    const { role, model, content } = conversation.messages[number - 1];
    const who = role === "user" ? "You" : model ?? "Model";
    const attached = attachedTo(content).map(({ text }) => `\n\n${text ?? "(a picture)"}`);
    return `## ${who}\n\n${textOf(content)}${attached.join("")}`;
  });
  return `${[`# ${title || "Conversation"}`, ...parts].join("\n\n")}\n`;
}
