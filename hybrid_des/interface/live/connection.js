// A connection to the server of this page: requests are numbered, and every answer has the number of its request.
function connect(answered, ended) {
  const socket = new WebSocket(`ws://${location.host}${location.pathname.replace(/[^/]*$/, "")}socket`), waiting = [];
  let number = 0;
  socket.onopen = () => { for (const text of waiting.splice(0)) socket.send(text); };
  socket.onmessage = (event) => answered(JSON.parse(event.data));
  socket.onclose = (event) => ended(event.reason || "the server has ended; start hybrid-des live again and open its new address");
  return (request) => {
    const text = JSON.stringify({ number: ++number, ...request });
    if (socket.readyState === WebSocket.CONNECTING) waiting.push(text); else if (socket.readyState === WebSocket.OPEN) socket.send(text);
    return number;
  };
}
