"""The least API server that one kubelet takes: objects in memory, lists, watches, patches. No admission, no authentication.

For what a kubelet does only for pods of an API server: resizing, ephemeral containers, runtime classes, deletion by request.
"""
import copy
import http.server
import json
import re
import threading
import time
import urllib.parse
import uuid

PATH = re.compile(r"^/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
                  r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?$")
# Lists that a patch merges by a key; the others are replaced.
KEYS = {"conditions": "type", "addresses": "type", "ephemeralContainers": "name", "containers": "name"}


def merge(old, patch, field=""):
    """A strategic merge patch, as far as kubelets send it."""
    if isinstance(old, list) and isinstance(patch, list) and field in KEYS:
        key, merged = KEYS[field], [dict(item) for item in old]
        for item in patch:
            at = next((n for n, other in enumerate(merged) if other.get(key) == item.get(key)), None)
            if item.get("$patch") == "delete":
                if at is not None:
                    merged.pop(at)
            elif at is None:
                merged.append(item)
            else:
                merged[at] = merge(merged[at], item)
        return merged
    if not isinstance(old, dict) or not isinstance(patch, dict):
        return patch
    merged = dict(old)
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value, name)
    return merged


def with_defaults(pod):
    """What a real API server fills in, and a kubelet counts on."""
    spec = pod["spec"]
    for field, value in (("restartPolicy", "Always"), ("dnsPolicy", "ClusterFirst"), ("terminationGracePeriodSeconds", 2),
                         ("securityContext", {}), ("enableServiceLinks", True), ("schedulerName", "none")):
        spec.setdefault(field, value)
    for container in spec["containers"] + spec.get("initContainers", []) + spec.get("ephemeralContainers", []):
        for field, value in (("terminationMessagePath", "/dev/termination-log"), ("terminationMessagePolicy", "File"),
                             ("imagePullPolicy", "IfNotPresent"), ("resources", {})):
            container.setdefault(field, value)
    pod.setdefault("status", {"phase": "Pending"})
    return pod


class Api:
    def __init__(self):
        self.objects, self.events, self.version = {}, [], 0
        self.changed = threading.Condition()
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do(self):
                api.serve(self)
            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        # A kubelet that is ended leaves its watches without a word.
        self.server.handle_error = lambda *_: None
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def end(self):
        self.server.shutdown()
        with self.changed:
            self.changed.notify_all()

    # ---- the store ------------------------------------------------------------------------------

    def put(self, key, thing, kind=None):
        """Stores an object and tells the watchers; `key` is (plural, namespace, name)."""
        with self.changed:
            self.version += 1
            meta = thing.setdefault("metadata", {})
            meta.setdefault("uid", str(uuid.uuid4()))
            meta.setdefault("creationTimestamp", now())
            meta["resourceVersion"] = str(self.version)
            if key[0] == "pods":
                with_defaults(thing)
            kind = kind or ("MODIFIED" if key in self.objects else "ADDED")
            if kind == "DELETED":
                self.objects.pop(key, None)
            else:
                self.objects[key] = thing
            self.events.append((self.version, key, kind, copy.deepcopy(thing)))
            self.changed.notify_all()
            return thing

    def get(self, *key):
        with self.changed:
            return copy.deepcopy(self.objects.get(key))

    def change(self, key, patch):
        with self.changed:
            thing = merge(self.objects[key], patch)
            # The generation counts changes of what is asked for: a kubelet reports the one that it has seen.
            if thing.get("spec") != self.objects[key].get("spec"):
                thing["metadata"]["generation"] = thing["metadata"].get("generation", 1) + 1
            return self.put(key, thing)

    def delete_pod(self, name, seconds):
        """As kubectl delete does: the kubelet ends the pod, then removes the object."""
        self.change(("pods", "default", name), {"metadata": {"deletionTimestamp": now(seconds), "deletionGracePeriodSeconds": seconds}})

    # ---- requests -------------------------------------------------------------------------------

    def serve(self, request):
        url = urllib.parse.urlsplit(request.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        found = PATH.match(url.path)
        if not found:
            return answer(request, 404, failure(404, "NotFound"))
        key = (found["plural"], found["namespace"] or "", found["name"] or "")
        if request.command == "GET" and not key[2]:
            return self.watch(request, key, query) if query.get("watch") in ("true", "1") else self.list(request, key, found, query)
        if request.command == "POST":
            thing = json.loads(body)
            if found["sub"] or found["plural"] in ("events", "tokenreviews", "subjectaccessreviews"):
                return answer(request, 201, thing)
            key = (key[0], key[1], thing["metadata"]["name"])
            if self.get(*key):
                return answer(request, 409, failure(409, "AlreadyExists"))
            return answer(request, 201, self.put(key, thing))
        there = self.get(*key)
        if there is None:
            return answer(request, 404, failure(404, "NotFound"))
        if request.command == "PATCH":
            patch = json.loads(body)
            if found["sub"] == "status":
                patch = {"metadata": patch.get("metadata", {}), "status": patch.get("status", {})}
            return answer(request, 200, self.change(key, patch))
        if request.command == "PUT":
            return answer(request, 200, self.put(key, json.loads(body)))
        if request.command == "DELETE":
            return answer(request, 200, self.put(key, there, "DELETED"))
        return answer(request, 200, there)

    def matches(self, wanted, key, thing, query):
        fields = dict(part.split("=", 1) for part in query.get("fieldSelector", "").replace("==", "=").split(",") if "=" in part)
        return (key[0] == wanted[0] and wanted[1] in ("", key[1])
                and fields.get("metadata.name", key[2]) == key[2]
                and ("spec.nodeName" not in fields or thing.get("spec", {}).get("nodeName") == fields["spec.nodeName"]))

    def list(self, request, wanted, found, query):
        with self.changed:
            items = [copy.deepcopy(t) for k, t in self.objects.items() if self.matches(wanted, k, t, query)]
            version = self.version
        kinds = {"nodes": "Node", "pods": "Pod", "services": "Service", "configmaps": "ConfigMap", "secrets": "Secret",
                 "runtimeclasses": "RuntimeClass", "csidrivers": "CSIDriver", "leases": "Lease"}
        group = found["core"] or f"{found['group']}/{found['version']}"
        answer(request, 200, {"kind": kinds.get(wanted[0], "Unknown") + "List", "apiVersion": group,
                              "metadata": {"resourceVersion": str(version)}, "items": items})

    def watch(self, request, wanted, query):
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()

        def tell(kind, thing):
            data = json.dumps({"type": kind, "object": thing}).encode() + b"\n"
            request.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            request.wfile.flush()
        try:
            with self.changed:
                seen = int(query.get("resourceVersion") or 0)
                initial = []
                if query.get("sendInitialEvents") == "true":
                    initial = [copy.deepcopy(t) for k, t in self.objects.items() if self.matches(wanted, k, t, query)]
                    seen = self.version
            for thing in initial:
                tell("ADDED", thing)
            if query.get("sendInitialEvents") == "true":
                kind = {"nodes": "Node", "pods": "Pod", "services": "Service", "runtimeclasses": "RuntimeClass",
                        "csidrivers": "CSIDriver", "configmaps": "ConfigMap"}.get(wanted[0], "Unknown")
                group = {"runtimeclasses": "node.k8s.io/v1", "csidrivers": "storage.k8s.io/v1"}.get(wanted[0], "v1")
                tell("BOOKMARK", {"kind": kind, "apiVersion": group, "metadata": {
                    "resourceVersion": str(seen), "annotations": {"k8s.io/initial-events-end": "true"}}})
            end = time.monotonic() + float(query.get("timeoutSeconds") or 300)
            while time.monotonic() < end:
                with self.changed:
                    news = [e for e in self.events if e[0] > seen]
                    if not news:
                        self.changed.wait(1)
                        continue
                for version, key, kind, thing in news:
                    seen = version
                    if self.matches(wanted, key, thing, query):
                        tell(kind, thing)
            request.wfile.write(b"0\r\n\r\n")
        except OSError:
            request.close_connection = True


def now(later=0):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + later))


def failure(code, reason):
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason}


def answer(request, code, thing):
    data = json.dumps(thing).encode()
    request.send_response(code)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
