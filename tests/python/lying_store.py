"""An object store whose answers a test controls: lists in any pages, true or false, and credential services. It records
each request. object_store.py has the correct store."""

import contextlib
import hashlib
import html
import http.server
import threading

from object_store import Request


def quoted(key):
    """Escapes a key for XML, with the control characters that some stores also send."""
    return "".join(f"&#{ord(c)};" if ord(c) < 32 else html.escape(c) for c in key)


def contents(key, data):
    etag = hashlib.md5(data).hexdigest()
    return f"<Contents><Key>{quoted(key)}</Key><Size>{len(data)}</Size><ETag>&quot;{etag}&quot;</ETag></Contents>"


def listing(*inner):
    return f"<?xml version='1.0'?><ListBucketResult>{''.join(inner)}</ListBucketResult>"


class LyingStore:
    """A store whose answers the test sets.

    `objects` maps keys to bytes. `pages(query)` returns the text of a list's page. `services` answers by method and
    path with a status and a body; other requests go to the store. `asked` records all requests; a proxy's targets
    appear as requests with the method CONNECT."""

    def __init__(self):
        self.objects, self.services, self.asked = {}, {}, []
        self.pages = lambda query: listing("<IsTruncated>false</IsTruncated>", *(
            contents(key, self.objects[key]) for key in sorted(self.objects, key=str.encode)
            if key.startswith(query.get("prefix", ""))))

    def answer(self, request):
        """Returns (status, headers, body)."""
        if request.method == "CONNECT":
            return 403, {}, b""
        if (request.method, request.path) in self.services:
            status, body = self.services[request.method, request.path]
            return status, {}, body.encode()
        if request.kind == "list":
            return 200, {}, self.pages(request.query).encode()
        data = self.objects.get(request.key)
        if request.method not in ("GET", "HEAD") or data is None:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        headers = {"ETag": f'"{hashlib.md5(data).hexdigest()}"'}
        if "range" not in request.headers:
            return 200, headers, data
        first, last = (int(place) for place in request.headers["range"][6:].split("-"))
        return 206, {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"}, data[first:last + 1]


@contextlib.contextmanager
def lying_store():
    store = LyingStore()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            request = Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()},
                              body)
            store.asked.append(request)
            status, headers, body = store.answer(request)
            self.send_response_only(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_CONNECT = respond

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):
            pass  # Clients disconnect once they have enough.

    with Server(("127.0.0.1", 0), Handler) as server:
        store.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield store
        server.shutdown()
