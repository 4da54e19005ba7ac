// Streams, events and graphs of the emulated driver: everything is finished when its call returns, so order is all that
// there is, except while a stream is captured: then its work is recorded, and each launch of the graph does it. Of nodes
// that need not follow each other the one that was recorded last comes first: a dependency that is missing shows.
#include "driver.hpp"
#include <algorithm>
#include <vector>

using Nodes = std::vector<void*>;  // a node's handle is its number, from 1 on
struct Node {
  Work work;
  bool is_kernel;
  Nodes after;
};
struct Graph {
  std::vector<Node> nodes;
  Nodes tips;  // what the next node comes after
};
enum { GLOBAL, THREAD_LOCAL, RELAXED };  // which calls beside the captured stream invalidate a capture
struct Stream {
  bool blocking;
  Graph* capture;  // what is being recorded, or nullptr
  int mode;
  bool invalid;  // the recording has gone wrong
};
struct Event {
  bool recorded;
  Stream* captured;
  double at_ms;
};
static auto& captured = *new std::vector<Stream*>;  // the streams under capture; never destroyed
static const Graph* last_captured;                  // whose nodes handles are of, outside of a capture

static Stream* stream_of(void* handle) {  // nullptr for the default stream: null, CU_STREAM_LEGACY 1, _PER_THREAD 2
  return (size_t)handle > 2 ? (Stream*)handle : nullptr;
}
static int invalidate(Stream* s, int code, const std::string& what) {
  s->invalid = true;
  return error(code, what + " is not allowed while a stream is captured; the capture is invalid now");
}
int not_in_capture(const char* what) {
  for (Stream* s : captured)
    if (s->mode != RELAXED) return invalidate(s, CAPTURE_UNSUPPORTED, what);
  return OK;
}
int not_beside_capture(const char* what) {
  for (Stream* s : captured)
    if (s->blocking) return invalidate(s, CAPTURE_IMPLICIT, std::string(what) + " on the default stream");
  return not_in_capture(what);
}
int submit(void* handle, Work work, bool is_kernel) {
  LOCKED;
  Stream* s = stream_of(handle);
  if (!s) {
    const int refused = captured.empty() ? OK : not_beside_capture("work");
    return refused ? refused : work();
  }
  if (!s->capture) return work();
  if (s->invalid) return error(CAPTURE_INVALIDATED, "the capture of this stream is invalid");
  Graph& g = *s->capture;
  g.nodes.push_back({std::move(work), is_kernel, std::move(g.tips)});
  g.tips = {(void*)g.nodes.size()};
  return OK;
}

extern "C" {
int cuCtxSynchronize() {
  LOCKED;
  if (!captured.empty()) return invalidate(captured[0], CAPTURE_UNSUPPORTED, "cuCtxSynchronize");
  std::string e = guards_broken();
  return e.empty() ? OK : error(LAUNCH_FAILED, e);
}

// ---- streams
int cuStreamCreate(Stream** s, unsigned flags) {
  *s = new Stream{flags == 0, nullptr, 0, false};
  return OK;
}
static void end_capture(Stream* s) {
  captured.erase(std::find(captured.begin(), captured.end(), s));
  s->capture = nullptr;
  s->invalid = false;
}
int cuStreamDestroy_v2(Stream* s) {
  if (s->capture) {
    delete s->capture;
    end_capture(s);
  }
  delete s;
  return OK;
}
static int not_captured(void* handle, const char* what) {
  Stream* s = stream_of(handle);
  return s && s->capture ? invalidate(s, CAPTURE_UNSUPPORTED, what) : OK;
}
int cuStreamSynchronize(void* s) {
  LOCKED;
  const int refused = s ? not_captured(s, "cuStreamSynchronize") : not_beside_capture("cuStreamSynchronize");
  if (refused) return refused;
  std::string e = guards_broken();
  return e.empty() ? OK : error(LAUNCH_FAILED, e);
}
int cuStreamQuery(void* s) { return not_captured(s, "cuStreamQuery"); }

// ---- events
int cuStreamWaitEvent(void* handle, Event* e, unsigned) {
  if (!e) return error(INVALID_HANDLE, "wait for a null event");
  Stream* s = stream_of(handle);
  if (e->captured == (s && s->capture ? s : nullptr)) return OK;
  if (!e->captured) return invalidate(s, CAPTURE_ISOLATION, "waiting for an event from outside");
  return invalidate(e->captured, CAPTURE_UNSUPPORTED, "a second stream (on the emulated driver)");
}
int cuEventCreate(Event** e, unsigned) {
  *e = new Event{false, nullptr, 0};
  return OK;
}
int cuEventDestroy_v2(Event* e) {
  delete e;
  return OK;
}
int cuEventRecord(Event* e, void* handle) {
  Stream* s = stream_of(handle);
  *e = s && s->capture ? Event{false, s, 0} : Event{true, nullptr, now_ms()};
  return OK;
}
static int uncaptured(const Event* e) {
  return e->captured ? error(CAPTURED_EVENT, "the event was recorded in a stream that was captured") : OK;
}
int cuEventQuery(Event* e) {
  const int refused = uncaptured(e);
  return refused ? refused : not_in_capture("cuEventQuery");
}
int cuEventSynchronize(Event* e) {
  const int refused = uncaptured(e);
  return refused ? refused : cuCtxSynchronize();
}
int cuEventElapsedTime_v2(float* ms, Event* a, Event* b) {
  if (a->captured || b->captured) return uncaptured(a->captured ? a : b);
  if (!a->recorded || !b->recorded) return error(INVALID_HANDLE, "time between events, one of which was not recorded");
  *ms = b->at_ms - a->at_ms;
  return OK;
}

// ---- capture
int cuStreamBeginCapture_v2(void* handle, int mode) {
  LOCKED;
  Stream* s = stream_of(handle);
  if (!s) return error(CAPTURE_UNSUPPORTED, "the default stream cannot be captured");
  if (mode < GLOBAL || mode > RELAXED) return error(INVALID_VALUE, "there is no capture mode " + std::to_string(mode));
  if (s->capture) return error(ILLEGAL_STATE, "this stream is being captured already");
  *s = {s->blocking, new Graph, mode, false};
  captured.push_back(s);
  return OK;
}
int cuStreamEndCapture(void* handle, Graph** graph) {
  LOCKED;
  Stream* s = stream_of(handle);
  *graph = nullptr;
  if (!s || !s->capture) return error(ILLEGAL_STATE, "this stream is not being captured");
  if (!s->invalid) last_captured = *graph = s->capture;
  else delete s->capture;
  end_capture(s);
  return *graph ? OK : error(CAPTURE_INVALIDATED, "the capture of this stream was invalid");
}
int cuStreamIsCapturing(void* handle, int* status) {  // 0: no, 1: yes, 2: yes, but it is invalid
  const Stream* s = stream_of(handle);
  *status = !s || !s->capture ? 0 : s->invalid ? 2 : 1;
  return OK;
}

int cuStreamGetCaptureInfo_v2(void* handle, int* status, unsigned long long* id, Graph** graph, void*** nodes, size_t* n) {
  const Stream* s = stream_of(handle);
  cuStreamIsCapturing(handle, status);
  if (*status != 1) return OK;
  if (id) *id = (size_t)s->capture;
  if (graph) *graph = s->capture;
  if (nodes) *nodes = s->capture->tips.data();
  if (n) *n = s->capture->tips.size();
  return OK;
}
int cuStreamUpdateCaptureDependencies(void* handle, void** nodes, size_t n, unsigned flags) {
  Stream* s = stream_of(handle);
  if (!s || !s->capture || s->invalid) return error(ILLEGAL_STATE, "this stream is not being captured");
  if (flags > 1) return error(INVALID_VALUE, "there are no such flags for dependencies: " + std::to_string(flags));
  Graph& g = *s->capture;
  const Nodes given(nodes, nodes + n);
  for (void* node : given)
    if (!node || (size_t)node > g.nodes.size()) return error(INVALID_VALUE, "the graph has no such node");
  if (flags == 1) g.tips.clear();  // CU_STREAM_SET_CAPTURE_DEPENDENCIES; 0 adds
  for (void* node : given)
    if (std::find(g.tips.begin(), g.tips.end(), node) == g.tips.end()) g.tips.push_back(node);
  return OK;
}

// ---- graphs
int cuGraphGetNodes(const Graph* g, void** nodes, size_t* n) {
  *n = g->nodes.size();
  return nodes ? error(INVALID_VALUE, "cuGraphGetNodes gives their number alone on the emulated driver") : OK;
}
int cuGraphGetEdges(const Graph* g, void** from, void** to, size_t* n) {
  if (from && !*n) return error(INVALID_VALUE, "cuGraphGetEdges: there is no room");
  size_t count = 0;
  for (size_t k = 0; k < g->nodes.size(); k++)
    for (void* before : g->nodes[k].after) {
      if (from && count < *n) from[count] = before, to[count] = (void*)(k + 1);
      count++;
    }
  *n = count;
  return OK;
}
int cuGraphNodeGetType(void* handle, int* type) {  // 0: a kernel, 1: a copy or what else there is. Of the last graph
  *type = !last_captured || (size_t)handle > last_captured->nodes.size() ||
          !last_captured->nodes[(size_t)handle - 1].is_kernel;
  return OK;
}
int cuGraphRemoveDependencies(Graph* g, void** from, void** to, size_t n) {
  for (size_t k = 0; k < n; k++) {
    Nodes& after = g->nodes[(size_t)to[k] - 1].after;
    const auto found = std::find(after.begin(), after.end(), from[k]);
    if (found == after.end()) return error(INVALID_VALUE, "the graph has no such edge");
    after.erase(found);
  }
  return OK;
}
struct EdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};
int cuGraphAddDependencies_v2(Graph* g, void** from, void** to, const EdgeData* data, size_t n) {
  for (size_t k = 0; k < n; k++) {
    const Node &before = g->nodes[(size_t)from[k] - 1], &behind = g->nodes[(size_t)to[k] - 1];
    if (data && data[k].type && !(before.is_kernel && behind.is_kernel))
      return error(INVALID_VALUE, "a programmatic edge that is not between kernels");
    g->nodes[(size_t)to[k] - 1].after.push_back(from[k]);
  }
  return OK;
}
int cuGraphInstantiateWithFlags(Graph** executable, const Graph* g, unsigned long long) {
  const int refused = not_in_capture("cuGraphInstantiate");
  if (!refused) *executable = new Graph(*g);
  return refused;
}
int cuGraphUpload(Graph*, void*) { return OK; }
static int run(const std::vector<Node>& nodes) {
  std::vector<bool> done(nodes.size());
  const auto is_done = [&](void* node) { return done[(size_t)node - 1]; };
  for (size_t left = nodes.size(); left; left--) {
    size_t next = nodes.size();
    while (done[--next] || !std::all_of(nodes[next].after.begin(), nodes[next].after.end(), is_done));
    if (const int failed = nodes[next].work()) return failed;
    done[next] = true;
  }
  return OK;
}
int cuGraphLaunch(const Graph* executable, void* stream) {
  return submit(stream, [nodes = executable->nodes] { return run(nodes); });
}
int cuGraphDestroy(Graph* g) {
  if (g == last_captured) last_captured = nullptr;
  delete g;
  return OK;
}
int cuGraphExecDestroy(Graph* executable) { return cuGraphDestroy(executable); }
}
