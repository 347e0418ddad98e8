/* A stand-in libLiteRt for faults that a real runtime will not produce on demand: the part of LiteRT's C ABI that the
 * agent uses, one signature x[16] float32 -> o[16] float32 with o = (x*k)^2 / k^2, in FP16 arithmetic on the "GPU"
 * unless FP32 is asked for. k comes from the model's file name (under: 1e-5, over: 1e4, else 1).
 *
 * The environment variable FAKERT names the fault:
 *   fail      compile returns 504              hang      run never returns
 *   crash     compile dies by SIGSEGV          slow      run takes 0.2 s
 *   abort     compile calls abort()            flaky     every run gives other numbers
 *   exit      compile calls _exit(1)           unwritten run leaves the outputs as they are
 *   kill      run dies by SIGKILL              block     run blocks every signal and never returns
 *   overflow  compile recurses without end
 *   thread    run waits while another thread crashes
 *   late      another thread crashes as soon as the file named by FAKERT_WATCH exists
 *   noise     prints to stdout and stderr      names     tensor names that are not UTF-8
 * -DFAKERT_OLD adds a symbol that LiteRT had until 2.1.2 only.
 */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { COUNT = 16 };

typedef int Status;
typedef void *Handle;
typedef struct {
    unsigned rank : 7;
    unsigned has_strides : 1;
    int32_t dims[8];
    uint32_t strides[8];
} Layout;
typedef struct {
    int element_type;
    Layout layout;
} TensorType;

struct options {
    int hardware, precision;
};
struct opaque {
    char id[32];
    char *text;
};
struct model {
    float k;
};
struct compiled {
    struct model *model;
    struct options options;
};
struct buffer {
    float values[COUNT];
};

static bool fault(const char *name) {
    const char *f = getenv("FAKERT");
    return f && !strcmp(f, name);
}

/* Round to half precision and back: overflow to infinity, subnormals kept. */
static float half(float x) {
    union {
        float f;
        uint32_t u;
    } v = {x};
    uint32_t sign = v.u & 0x80000000u, a = v.u & 0x7fffffffu;
    if (a >= 0x7f800000u) return x;
    if (a >= 0x477ff000u) {
        v.u = sign | 0x7f800000u;
        return v.f;
    }
    if (a < 0x38800000u) {
        float least = 5.9604644775390625e-8f, q = x / least;
        return (float)(int)(q < 0 ? q - 0.5f : q + 0.5f) * least;
    }
    a += 0xfff + ((a >> 13) & 1);
    v.u = sign | (a & ~0x1fffu);
    return v.f;
}

#ifdef FAKERT_OLD
API Status LiteRtCreateGpuOptions(Handle *o) { (void)o; return 0; }
#endif

API Status LiteRtCreateEnvironment(int n, const void *options, Handle *e) {
    (void)n, (void)options;
    if (fault("noise")) printf("noise on stdout\n"), fflush(stdout), fprintf(stderr, "noise on stderr\n");
    *e = malloc(8);
    return 0;
}
API Status LiteRtCreateOptions(Handle *o) { *o = calloc(1, sizeof(struct options)); return 0; }
API Status LiteRtSetOptionsHardwareAccelerators(Handle o, int hardware) { ((struct options *)o)->hardware = hardware; return 0; }
API Status LiteRtCreateOpaqueOptions(const char *id, void *text, void (*del)(void *), Handle *o) {
    (void)del;
    struct opaque *q = calloc(1, sizeof *q);
    strncpy(q->id, id, sizeof q->id - 1);
    q->text = text;
    *o = q;
    return 0;
}
API Status LiteRtAddOpaqueOptions(Handle o, Handle opaque) {
    struct opaque *q = opaque;
    const char *s = !strcmp(q->id, "gpu_options") ? strstr(q->text, "precision = ") : NULL;
    if (s) ((struct options *)o)->precision = s[12] - '0';
    return 0;
}
API Status LiteRtCreateModelFromFile(Handle e, const char *path, Handle *m) {
    (void)e;
    if (access(path, R_OK)) return 500;
    struct model *p = malloc(sizeof *p);
    p->k = strstr(path, "under") ? 1e-5f : strstr(path, "over") ? 1e4f : 1;
    *m = p;
    return 0;
}
API Status LiteRtCreateModelFromFd(void) { return 5; }

static volatile int depth;
__attribute__((noinline)) static int recurse(int n) {
    volatile char frame[4096];
    frame[0] = (char)n;
    depth = n;
    return recurse(n + 1) + frame[0];
}

API Status LiteRtCreateCompiledModel(Handle e, Handle m, Handle o, Handle *c) {
    (void)e;
    if (fault("fail")) return 504;
    if (fault("crash")) *(volatile int *)8 = 1;
    if (fault("abort")) abort();
    if (fault("overflow")) recurse(0);
    if (fault("exit")) _exit(1);
    struct compiled *p = malloc(sizeof *p);
    p->model = m;
    p->options = *(struct options *)o;
    *c = p;
    return 0;
}
API Status LiteRtCompiledModelIsFullyAccelerated(Handle c, bool *yes) { (void)c; *yes = true; return 0; }
API Status LiteRtGetNumModelSignatures(Handle m, size_t *n) { (void)m; *n = 1; return 0; }
API Status LiteRtGetModelSignature(Handle m, size_t i, Handle *s) { (void)i; *s = m; return 0; }
API Status LiteRtGetNumSignatureInputs(Handle s, size_t *n) { (void)s; *n = 1; return 0; }
API Status LiteRtGetNumSignatureOutputs(Handle s, size_t *n) { (void)s; *n = 1; return 0; }
API Status LiteRtGetSignatureInputName(Handle s, size_t i, const char **n) {
    (void)s, (void)i;
    *n = fault("names") ? "x\xff\"\\\n\xc3\xa9\xed\xa0\x80" : "x";
    return 0;
}
API Status LiteRtGetSignatureOutputName(Handle s, size_t i, const char **n) { (void)s, (void)i; *n = "o"; return 0; }
API Status LiteRtGetSignatureInputTensor(Handle s, const char *n, Handle *t) { (void)n; *t = s; return 0; }
API Status LiteRtGetSignatureOutputTensor(Handle s, const char *n, Handle *t) { (void)n; *t = s; return 0; }
static void layout(Layout *l) {
    memset(l, 0, sizeof *l);
    l->rank = 1;
    l->dims[0] = COUNT;
}
API Status LiteRtGetRankedTensorType(Handle t, TensorType *r) { (void)t; r->element_type = 1; layout(&r->layout); return 0; }
API Status LiteRtGetCompiledModelInputTensorLayout(Handle c, size_t s, size_t i, Layout *l) { (void)c, (void)s, (void)i; layout(l); return 0; }
API Status LiteRtGetCompiledModelOutputTensorLayouts(Handle c, size_t s, size_t n, Layout *l, bool update) { (void)c, (void)s, (void)n, (void)update; layout(l); return 0; }
API Status LiteRtGetCompiledModelInputBufferRequirements(Handle c, size_t s, size_t i, Handle *r) { (void)s, (void)i; *r = c; return 0; }
API Status LiteRtGetCompiledModelOutputBufferRequirements(Handle c, size_t s, size_t i, Handle *r) { (void)s, (void)i; *r = c; return 0; }
API Status LiteRtCreateManagedTensorBufferFromRequirements(Handle e, const TensorType *t, Handle r, Handle *b) { (void)e, (void)t, (void)r; *b = calloc(1, sizeof(struct buffer)); return 0; }
API Status LiteRtGetTensorBufferPackedSize(Handle b, size_t *n) { (void)b; *n = sizeof(struct buffer); return 0; }
API Status LiteRtLockTensorBuffer(Handle b, void **p, int mode) { (void)mode; *p = ((struct buffer *)b)->values; return 0; }
API Status LiteRtUnlockTensorBuffer(Handle b) { (void)b; return 0; }

static void *crash_here(void *unused) {
    (void)unused;
    *(volatile int *)8 = 1;
    return NULL;
}

static void *crash_later(void *path) {
    while (access(path, F_OK)) usleep(20);
    return crash_here(path);
}

API Status LiteRtRunCompiledModel(Handle c, size_t s, size_t n, Handle *in, size_t m, Handle *out) {
    (void)s, (void)n, (void)m;
    static int runs;
    struct compiled *p = c;
    struct buffer *x = in[0], *o = out[0];
    float k = p->model->k;
    runs++;
    if (fault("hang")) for (;;) sleep(1);
    if (fault("block")) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, NULL);
        for (;;) sleep(1);
    }
    if (fault("kill")) raise(SIGKILL);
    if (fault("slow")) usleep(200000);
    if (fault("unwritten")) return 0;
    if (fault("thread")) {
        pthread_t t;
        pthread_create(&t, NULL, crash_here, NULL);
        pthread_join(t, NULL);
    }
    if (fault("late") && runs == 1) {
        pthread_t t;
        pthread_create(&t, NULL, crash_later, getenv("FAKERT_WATCH"));
    }
    for (int i = 0; i < COUNT; i++) {
        if (p->options.hardware & 2 && p->options.precision != 2) {
            float y = half(half(x->values[i]) * half(k));
            o->values[i] = half(half(y * y) * half(1 / (k * k)));
        } else {
            float y = x->values[i] * k;
            o->values[i] = y * y * (1 / (k * k));
        }
        if (fault("flaky")) o->values[i] += (float)runs;
    }
    return 0;
}
