/* A management library with one GPU that waits at 100% and 43 W: what the driver of a V100 says.
   It has only the functions that dragoman calls; see nvml.h. If NVML_STUB_OLD is set, it answers
   "not supported"; if NVML_STUB_HOPPER is set, it counts busy multiprocessors, as Hopper does; if
   NVML_STUB_SHARED is set, it has no memory of its own. It is too hot at each look, or, if NVML_STUB_COOL is set, at each fourth. */
#include <stdlib.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
static int device;
static int old(void) { return getenv("NVML_STUB_OLD") != NULL; }

nvmlReturn_t nvmlInitWithFlags(unsigned int f) { (void)f; return OK; }
nvmlReturn_t nvmlInit_v2(void) { return OK; }
nvmlReturn_t nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(nvmlReturn_t r) { return r == NOT_FOUND ? "Not Found" : "Not Supported"; }
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, void **d) {
    if (strcmp(uuid, "GPU-0f")) return NOT_FOUND;
    *d = &device;
    return OK;
}
nvmlReturn_t nvmlDeviceGetName(void *d, char *name, unsigned int n) {
    (void)d; strncpy(name, "Tesla V100-PCIE-16GB", n); return OK;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(void *d, nvmlUtilization_t *u) {
    (void)d; u->gpu = 100; u->memory = 12; return old() ? NOT_SUPPORTED : OK;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(void *d, unsigned int *mw) {
    (void)d; *mw = 43000; return old() ? NOT_SUPPORTED : OK;
}
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned int *mw) {
    (void)d; *mw = 250000; return old() ? NOT_SUPPORTED : OK;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(void *d, nvmlMemory_t *m) {
    (void)d; m->total = 16ULL << 30; m->used = 10ULL << 30; m->free = 6ULL << 30;
    return getenv("NVML_STUB_SHARED") ? NOT_SUPPORTED : OK;
}
nvmlReturn_t nvmlDeviceGetClockInfo(void *d, int kind, unsigned int *mhz) {
    (void)d; *mhz = kind == 1 ? 1380 : 877; return old() ? NOT_SUPPORTED : OK;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *r) {
    static int looks = 0;
    (void)d; looks++;
    *r = 0x4 | 0x1 | (getenv("NVML_STUB_COOL") && looks % 4 ? 0 : 0x20);
    return old() ? NOT_SUPPORTED : OK;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(void *d, int kind, int counter, unsigned long long *n) {
    (void)d; *n = kind == 1 && counter == 0 ? 2 : 99; return old() ? NOT_SUPPORTED : OK;
}

typedef struct { unsigned int version, supported; } nvmlGpmSupport_t;
typedef struct { int moment; } *nvmlGpmSample_t;
typedef struct {
    unsigned int id;
    nvmlReturn_t result;
    double value;
    struct { char *short_name, *long_name, *unit; } info;
} nvmlGpmMetric_t;
typedef struct {
    unsigned int version, count;
    nvmlGpmSample_t before, now;
    nvmlGpmMetric_t metrics[1];
} nvmlGpmMetricsGet_t;

nvmlReturn_t nvmlGpmQueryDeviceSupport(void *d, nvmlGpmSupport_t *s) {
    (void)d; s->supported = getenv("NVML_STUB_HOPPER") != NULL; return OK;
}
nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *s) { *s = malloc(sizeof **s); return OK; }
nvmlReturn_t nvmlGpmSampleGet(void *d, nvmlGpmSample_t s) {
    static int moment;
    (void)d; s->moment = ++moment; return OK;
}
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *m) {
    int is_sm_activity = m->version == 1 && m->count == 1 && m->metrics[0].id == 2;
    if (!is_sm_activity || m->now->moment != m->before->moment + 1) return NOT_SUPPORTED;
    m->metrics[0].result = OK;
    m->metrics[0].value = 3.125;
    return OK;
}
