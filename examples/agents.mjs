// Several questions at once, with Node alone: they share the machines, and steps are computed together.

const url = process.env.SINEW_URL ?? "http://127.0.0.1:8750";
const models = await (await fetch(`${url}/v1/models`)).json();
const model = process.env.SINEW_MODEL ?? models.data[0].id;

async function ask(question) {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({
      model, temperature: 0, max_tokens: 40, messages: [{ role: "user", content: question }],
    }),
  });
  const body = await response.json();
  if (!response.ok) throw new Error(body.error.message);
  return body.choices[0].message.content;
}

const questions = ["Who are you?", "Which boat is blue?", "What is Sinew?"];
for (const answer of await Promise.all(questions.map(ask))) console.log(answer);
