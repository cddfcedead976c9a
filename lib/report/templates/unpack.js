"use strict";
// Unpacking of the data that a page carries compressed, in base64.

/** The text of a data block. */
async function unpackText(name) {
  const encoded = atob(document.getElementById(`data-${name}`).textContent);
  const bytes = new Uint8Array(encoded.length);
  for (let place = 0; place < encoded.length; place += 1) bytes[place] = encoded.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

async function unpack(name) {
  return JSON.parse(await unpackText(name));
}
