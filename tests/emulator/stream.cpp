// Streams and events of the emulated driver: everything is finished when its call returns, so order is all there is.
#include "driver.hpp"

extern "C" int cuCtxSynchronize();

struct Event {
  bool recorded;
  double at_ms;
};

extern "C" {
int cuStreamCreate(void** s, unsigned) {
  *s = malloc(1);
  return OK;
}
int cuStreamDestroy_v2(void* s) {
  free(s);
  return OK;
}
int cuStreamSynchronize(void*) { return cuCtxSynchronize(); }
int cuStreamQuery(void*) { return OK; }
int cuStreamWaitEvent(void*, Event* e, unsigned) { return e ? OK : error(INVALID_HANDLE, "wait for a null event"); }
int cuEventCreate(Event** e, unsigned) {
  *e = new Event{false, 0};
  return OK;
}
int cuEventDestroy_v2(Event* e) {
  delete e;
  return OK;
}
int cuEventRecord(Event* e, void*) {
  *e = {true, now_ms()};
  return OK;
}
int cuEventQuery(Event*) { return OK; }
int cuEventSynchronize(Event*) { return cuCtxSynchronize(); }
int cuEventElapsedTime_v2(float* ms, Event* a, Event* b) {
  if (!a->recorded || !b->recorded) return error(INVALID_HANDLE, "time between events, one of which was not recorded");
  *ms = b->at_ms - a->at_ms;
  return OK;
}
}
