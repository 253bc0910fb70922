// Talks with the server: one function asks and hands out the objects of the answer as they come.

/** The model served: the first entry of /v1/models. */
export async function servedModel(key) {
  const response = await fetch("/v1/models", { headers: authorization(key) });
  if (!response.ok) throw new Error(await message(response));
  return (await response.json()).data[0];
}

/**
 * Ask for a streamed answer.
 * @param body The request, without what makes it a stream.
 * @param key API key, or "".
 * @param signal Ends the request when it is aborted.
 * @yields The chunks of the answer, parsed.
 */
export async function* ask(body, key, signal) {
  const options = { include_usage: true, include_population: true };
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...authorization(key) },
    body: JSON.stringify({ ...body, stream: true, stream_options: options }),
    signal,
  });
  if (!response.ok) throw new Error(await message(response));
  for await (const line of lines(response.body)) {
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue; // comments, and the end
    const chunk = JSON.parse(line.slice("data: ".length));
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
}

const authorization = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

async function message(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
}
