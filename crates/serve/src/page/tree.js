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

/** A content's text, without pictures. */
export function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((part) => part?.text ?? "").filter(Boolean).join("\n");
}

/** The addresses of a content's pictures. */
export function picturesOf(content) {
  if (!Array.isArray(content)) return [];
  const addresses = content.map((part) => part?.image_url?.url ?? part?.image_url);
  // Only what the user gave; an address of elsewhere is not fetched.
  return addresses.filter((url) => typeof url === "string" && url.startsWith("data:image/"));
}

/** A question's content for the node. */
export function contentOf(text, pictures) {
  const parts = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  if (parts.length === 0) return text;
  return text ? [...parts, { type: "text", text }] : parts;
}

/** The branch that is shown, as Markdown. */
export function markdown(conversation, title) {
  const parts = path(conversation).map((number) => {
    const { role, model, content } = conversation.messages[number - 1];
    const who = role === "user" ? "You" : model ?? "Model";
    const count = picturesOf(content).length;
    const pictures = count > 0 ? `\n\n(${count} pictures)` : "";
    return `## ${who}\n\n${textOf(content)}${pictures}`;
  });
  return `${[`# ${title || "Conversation"}`, ...parts].join("\n\n")}\n`;
}
