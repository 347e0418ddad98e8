/* litert_agent: run one cell on a device through LiteRT's C API and leave raw outputs and one JSON result.
 *
 * Place in the flow: farm's session pushes this program, a runtime (libLiteRt and its accelerators), a model and
 * input files to a device, starts it once per (model, signature, config), and pulls the result file back. The
 * contract is agents/PROTOCOL.md; its twin on the host is farm/agent_protocol.py.
 *
 * One process runs one cell and then ends, so that a crash, a hang or a driver's state never reaches the next one. A
 * small parent watches it: some deaths leave no word (the out-of-memory killer, a library that calls _exit(1) after a
 * failed check, a driver that blocks all signals), and the host must learn of them from a result like any other.
 * C11, libc and libdl only: no C++ runtime is needed on a phone, and an Android build needs no NDK. For the same reason
 * it keeps away from what differs between glibc, bionic and macOS: no struct stat, no strtol or sscanf (glibc
 * redirects them to symbols bionic lacks), no stdio streams, no threads.
 *
 * Sections: 1 LiteRT's ABI  2 text, numbers, memory  3 result writer  4 SHA-256  5 job  6 runtime
 *           7 tensors  8 runs  9 result  10 watching parent  11 main
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#define PROTOCOL 1
#define AGENT_VERSION "1.0.0"
#define MINIMUM_RUNTIME "2.1.3"

#if defined(__ANDROID__) || defined(FARM_BIONIC)
#define OS_NAME "android"
#elif defined(__APPLE__)
#define OS_NAME "macos"
#else
#define OS_NAME "linux"
#endif
#if defined(__aarch64__) && (defined(__ANDROID__) || defined(FARM_BIONIC) || defined(__APPLE__))
#define ARCH_NAME "arm64"
#elif defined(__aarch64__)
#define ARCH_NAME "aarch64"
#elif defined(__x86_64__)
#define ARCH_NAME "x86_64"
#else
#error "litert_agent supports 64-bit ARM and x86 only"
#endif
#define PLATFORM OS_NAME "-" ARCH_NAME

/* Exit codes are for people; the host decides by the result file alone. */
enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_REFUSED = 64, EXIT_NO_RESULT = 74, EXIT_TIMED_OUT = 124, EXIT_SIGNAL = 128 };

/* ==== 1. The part of LiteRT's C ABI used here (litert/c, 2.1.3 to 2.3.0) ===================================== */

typedef int Status;
typedef void *Handle;
typedef struct {
    int type;
    union {
        int64_t integer;
        const char *text;
    };
} Any;
typedef struct {
    int tag;
    Any value;
} EnvOption;
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
_Static_assert(sizeof(Any) == 16 && sizeof(EnvOption) == 24, "LiteRtAny, LiteRtEnvOption");
_Static_assert(sizeof(Layout) == 68 && sizeof(TensorType) == 72, "LiteRtLayout, LiteRtRankedTensorType");

enum { MAX_RANK = 8, ANY_INT = 2, ANY_TEXT = 8 };
enum { TAG_DISPATCH_DIR = 1, TAG_RUNTIME_DIR = 22, TAG_AUTO_REGISTER = 24 };
enum { HW_CPU = 1, HW_GPU = 2, HW_NPU = 4 };
enum { FOR_READ = 0, FOR_WRITE = 1 };

/* REQUIRED(return type, name, arguments…) and OPTIONAL(…): one table declares and binds every function. */
#define API(REQUIRED, OPTIONAL)                                                                      \
    REQUIRED(Status, CreateEnvironment, int, const EnvOption *, Handle *)                            \
    REQUIRED(Status, CreateOptions, Handle *)                                                        \
    REQUIRED(Status, SetOptionsHardwareAccelerators, Handle, int)                                    \
    REQUIRED(Status, CreateOpaqueOptions, const char *, void *, void (*)(void *), Handle *)          \
    REQUIRED(Status, AddOpaqueOptions, Handle, Handle)                                               \
    REQUIRED(Status, CreateCompiledModel, Handle, Handle, Handle, Handle *)                          \
    REQUIRED(Status, CompiledModelIsFullyAccelerated, Handle, bool *)                                \
    REQUIRED(Status, GetNumModelSignatures, Handle, size_t *)                                        \
    REQUIRED(Status, GetModelSignature, Handle, size_t, Handle *)                                    \
    REQUIRED(Status, GetNumSignatureInputs, Handle, size_t *)                                        \
    REQUIRED(Status, GetNumSignatureOutputs, Handle, size_t *)                                       \
    REQUIRED(Status, GetSignatureInputName, Handle, size_t, const char **)                           \
    REQUIRED(Status, GetSignatureOutputName, Handle, size_t, const char **)                          \
    REQUIRED(Status, GetSignatureInputTensor, Handle, const char *, Handle *)                        \
    REQUIRED(Status, GetSignatureOutputTensor, Handle, const char *, Handle *)                       \
    REQUIRED(Status, GetRankedTensorType, Handle, TensorType *)                                      \
    REQUIRED(Status, GetCompiledModelInputTensorLayout, Handle, size_t, size_t, Layout *)            \
    REQUIRED(Status, GetCompiledModelOutputTensorLayouts, Handle, size_t, size_t, Layout *, bool)    \
    REQUIRED(Status, GetCompiledModelInputBufferRequirements, Handle, size_t, size_t, Handle *)      \
    REQUIRED(Status, GetCompiledModelOutputBufferRequirements, Handle, size_t, size_t, Handle *)     \
    REQUIRED(Status, CreateManagedTensorBufferFromRequirements, Handle, const TensorType *, Handle, Handle *) \
    REQUIRED(Status, GetTensorBufferPackedSize, Handle, size_t *)                                    \
    REQUIRED(Status, LockTensorBuffer, Handle, void **, int)                                         \
    REQUIRED(Status, UnlockTensorBuffer, Handle)                                                     \
    REQUIRED(Status, RunCompiledModel, Handle, size_t, size_t, Handle *, size_t, Handle *)           \
    OPTIONAL(Status, GetSignatureInputTensorByIndex, Handle, size_t, Handle *)                       \
    OPTIONAL(Status, GetSignatureOutputTensorByIndex, Handle, size_t, Handle *)                      \
    OPTIONAL(Status, CompiledModelResizeInputTensor, Handle, size_t, size_t, const int *, size_t)    \
    OPTIONAL(Status, CompiledModelResizeInputTensorNonStrict, Handle, size_t, size_t, const int *, size_t) \
    OPTIONAL(Status, CompiledModelIsNonCpuFullyAccelerated, Handle, bool *)                          \
    OPTIONAL(Status, GetNumAccelerators, Handle, size_t *)                                           \
    OPTIONAL(Status, GetAccelerator, Handle, size_t, Handle *)                                       \
    OPTIONAL(Status, GetAcceleratorName, Handle, const char **)

#define DECLARE(ret, name, ...)             \
    typedef ret (*name##_t)(__VA_ARGS__);   \
    static name##_t lrt_##name;
API(DECLARE, DECLARE)

typedef Status (*CreateModel_t)(Handle, const char *, Handle *); /* 2.1.6 on */
typedef Status (*CreateModelOld_t)(const char *, Handle *);      /* 2.1.3 to 2.1.5 */

/* LiteRtGetStatusString is not exported since 2.1; names from litert/c/litert_common.h without "kLiteRtStatus". */
static const char *status_name(Status s) {
    switch (s) {
    case 0: return "Ok";
    case 1: return "ErrorInvalidArgument";
    case 2: return "ErrorMemoryAllocationFailure";
    case 3: return "ErrorRuntimeFailure";
    case 4: return "ErrorMissingInputTensor";
    case 5: return "ErrorUnsupported";
    case 6: return "ErrorNotFound";
    case 7: return "ErrorTimeoutExpired";
    case 8: return "ErrorWrongVersion";
    case 9: return "ErrorUnknown";
    case 10: return "ErrorAlreadyExists";
    case 100: return "Cancelled";
    case 500: return "ErrorFileIO";
    case 501: return "ErrorInvalidFlatbuffer";
    case 502: return "ErrorDynamicLoading";
    case 503: return "ErrorSerialization";
    case 504: return "ErrorCompilation";
    case 1000: return "ErrorIndexOOB";
    case 1001: return "ErrorInvalidIrType";
    case 1002: return "ErrorInvalidGraphInvariant";
    case 1003: return "ErrorGraphModification";
    case 1500: return "ErrorInvalidToolConfig";
    case 2000: return "LegalizeNoMatch";
    case 2001: return "ErrorInvalidLegalization";
    case 3000: return "PatternNoMatch";
    case 3001: return "InvalidTransformation";
    case 4000: return "ErrorUnsupportedRuntimeVersion";
    case 4001: return "ErrorUnsupportedCompilerVersion";
    case 4002: return "ErrorIncompatibleByteCodeVersion";
    case 5000: return "ErrorUnsupportedOpShapeInferer";
    case 5001: return "ErrorShapeInferenceFailed";
    default: return "Unknown";
    }
}

/* Numpy's names where numpy has the type, else LiteRT's (litert/c/litert_model_types.h). */
static const char *dtype_name(int t) {
    switch (t) {
    case 1: return "float32";
    case 2: return "int32";
    case 3: return "uint8";
    case 4: return "int64";
    case 5: return "string";
    case 6: return "bool";
    case 7: return "int16";
    case 8: return "complex64";
    case 9: return "int8";
    case 10: return "float16";
    case 11: return "float64";
    case 12: return "complex128";
    case 13: return "uint64";
    case 14: return "resource";
    case 15: return "variant";
    case 16: return "uint32";
    case 17: return "uint16";
    case 18: return "int4";
    case 19: return "bfloat16";
    case 20: return "int2";
    case 21: return "uint4";
    case 22: return "float8_e4m3fn";
    case 23: return "float8_e5m2";
    default: return "unknown";
    }
}

/* ==== 2. Text, numbers, memory ============================================================================== */

static _Noreturn void fail(Status status, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Zeroed memory or a failed result, never NULL; `count` 0 is fine. */
static void *grab(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    if (!p) fail(0, "ENOMEM", "out of memory (%zu x %zu bytes)", count, size);
    return p;
}

/* A growing text. Append functions never fail visibly: `broken` is looked at once, before use. */
typedef struct {
    char *data;
    size_t size, capacity;
    bool broken;
} Text;

static void put_bytes(Text *t, const char *s, size_t n) {
    if (t->broken) return;
    if (t->size + n + 1 > t->capacity) {
        size_t capacity = (t->capacity + n + 64) * 2;
        char *data = realloc(t->data, capacity);
        if (!data) {
            t->broken = true;
            return;
        }
        t->data = data, t->capacity = capacity;
    }
    memcpy(t->data + t->size, s, n);
    t->size += n;
    t->data[t->size] = 0;
}

static void put(Text *t, const char *s) { put_bytes(t, s, strlen(s)); }

static void put_int(Text *t, int64_t v) {
    char b[24];
    put_bytes(t, b, (size_t)snprintf(b, sizeof b, "%lld", (long long)v));
}

/* Milliseconds with six decimals from nanoseconds; by hand, since a library may have set a locale with a comma. */
static void put_ms(Text *t, int64_t ns) {
    char b[40];
    if (ns < 0) ns = 0;
    put_bytes(t, b, (size_t)snprintf(b, sizeof b, "%lld.%06lld", (long long)(ns / 1000000), (long long)(ns % 1000000)));
}

/* Length of the valid UTF-8 sequence at s, or 0. Refuses overlong forms, surrogates and values over U+10FFFF. */
static size_t utf8_length(const unsigned char *s) {
    if (s[0] < 0x80) return 1;
    if (s[0] >= 0xc2 && s[0] <= 0xdf) return (s[1] & 0xc0) == 0x80 ? 2 : 0;
    if ((s[0] & 0xf0) == 0xe0) {
        if ((s[1] & 0xc0) != 0x80 || (s[2] & 0xc0) != 0x80) return 0;
        if (s[0] == 0xe0 && s[1] < 0xa0) return 0;
        return s[0] == 0xed && s[1] > 0x9f ? 0 : 3;
    }
    if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        if ((s[1] & 0xc0) != 0x80 || (s[2] & 0xc0) != 0x80 || (s[3] & 0xc0) != 0x80) return 0;
        if (s[0] == 0xf0 && s[1] < 0x90) return 0;
        return s[0] == 0xf4 && s[1] > 0x8f ? 0 : 4;
    }
    return 0;
}

/* A JSON string. Bytes that are not UTF-8 (names come from models) become the four characters \xNN. */
static void put_json(Text *t, const char *s) {
    char b[8];
    put(t, "\"");
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        size_t n = utf8_length(p);
        if (n == 0) put_bytes(t, b, (size_t)snprintf(b, sizeof b, "\\\\x%02x", *p)), p++;
        else if (n > 1) put_bytes(t, (const char *)p, n), p += n;
        else if (*p == '"' || *p == '\\') b[0] = '\\', b[1] = (char)*p++, put_bytes(t, b, 2);
        else if (*p < 0x20 || *p == 0x7f) put_bytes(t, b, (size_t)snprintf(b, sizeof b, "\\u%04x", *p)), p++;
        else put_bytes(t, (const char *)p++, 1);
    }
    put(t, "\"");
}

/* Decimal digits only, at most `max`. Moves *p past them; false if there are none or they are too many. */
static bool take_number(const char **p, int64_t max, int64_t *out) {
    const char *s = *p;
    int64_t v = 0;
    if (*s < '0' || *s > '9') return false;
    for (; *s >= '0' && *s <= '9'; s++) {
        v = v * 10 + (*s - '0');
        if (v > max) return false;
    }
    *p = s, *out = v;
    return true;
}

static bool write_all(int fd, const void *data, size_t n) {
    const char *p = data;
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            if (k == 0) errno = EIO;
            return false;
        }
        p += k, n -= (size_t)k;
    }
    return true;
}

/* Write a new file and fsync it; on failure nothing is left and errno says why. */
static bool write_file(const char *path, const void *data, size_t n, bool sync) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return false;
    bool ok = write_all(fd, data, n) && (!sync || fsync(fd) == 0);
    int why = errno;
    if (close(fd) != 0 && ok) ok = false, why = errno;
    if (!ok) unlink(path), errno = why;
    return ok;
}

static const char *errno_name(int e) {
    switch (e) {
    case ENOSPC: return "ENOSPC";
#ifdef EDQUOT
    case EDQUOT: return "ENOSPC";
#endif
    case ENOENT: return "ENOENT";
    case EACCES: return "EACCES";
    case EROFS: return "EROFS";
    case EIO: return "EIO";
    case ENOMEM: return "ENOMEM";
    default: return "EIO";
    }
}

/* ==== 3. Result writer ====================================================================================== */

/* What the worker and its parent share. `stage` is a literal of this file: valid in both, the worker is a fork. */
typedef struct {
    const char *volatile stage;
    volatile int committed; /* a result is in place */
    volatile int signal;    /* what ended the worker, noted by its own handler */
    char accelerators[2048]; /* JSON strings with commas between: those registered before compiling */
} Shared;

static Shared g_start = {.stage = "start"};

static struct {
    const char *nonce; /* checked: letters, digits, '.', '_', '-' only */
    const char *result;
    char *temporary;
    int progress; /* the stdout the host reads; fd 1 belongs to the libraries */
    int usage;    /* whose memory a result states: the worker's own, or in the parent its child's */
    int64_t started_ns;
    Shared *shared;
} g = {.progress = 1, .usage = RUSAGE_SELF, .shared = &g_start};

static void stage(const char *name) {
    g.shared->stage = name;
    char b[96];
    long long us = (long long)(now_ns() - g.started_ns) / 1000;
    int n = snprintf(b, sizeof b, "@stage %s %lld.%03lld\n", name, us / 1000, us % 1000);
    (void)!write_all(g.progress, b, (size_t)n);
}

/* Not for a process just exec'ed: Linux lets ru_maxrss survive exec, so it would state the size of our starter. */
static int64_t peak_rss_bytes(void) {
    struct rusage u;
    if (getrusage(g.usage, &u) != 0) return 0;
#ifdef __APPLE__
    return u.ru_maxrss; /* bytes there, KiB everywhere else */
#else
    return (int64_t)u.ru_maxrss * 1024;
#endif
}

/* Put the whole result in place, or nothing, and leave. No destructors run: vendor drivers crash in theirs. */
static _Noreturn void finish(Text *json, int code) {
    bool ok = !json->broken && write_file(g.temporary, json->data, json->size, true) && rename(g.temporary, g.result) == 0;
    int why = errno;
    if (ok) g.shared->committed = 1, _exit(code);
    char b[512];
    int n = snprintf(b, sizeof b, "@error cannot write the result file: %s\n", json->broken ? "out of memory" : strerror(why));
    (void)!write_all(g.progress, b, (size_t)n);
    unlink(g.temporary);
    _exit(EXIT_NO_RESULT);
}

static void put_head(Text *t, bool ok) {
    put(t, "{\"protocol\":"), put_int(t, PROTOCOL);
    put(t, ",\"agent_version\":\"" AGENT_VERSION "\",\"nonce\":"), put_json(t, g.nonce ? g.nonce : "");
    put(t, ok ? ",\"ok\":true" : ",\"ok\":false");
    put(t, ",\"stage\":"), put_json(t, g.shared->stage);
    put(t, ",\"total_ms\":"), put_ms(t, now_ns() - g.started_ns);
    put(t, ",\"peak_rss_bytes\":"), put_int(t, peak_rss_bytes());
    put(t, ",\"accelerators\":["), put(t, g.shared->accelerators), put(t, "]");
}

static _Noreturn void fail(Status status, const char *name, const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    Text t = {0};
    put_head(&t, false);
    put(&t, ",\"status\":"), put_int(&t, status);
    put(&t, ",\"status_name\":"), put_json(&t, name);
    put(&t, ",\"error\":"), put_json(&t, text);
    put(&t, "}\n");
    Text line = {0};
    put(&line, "@error "), put_json(&line, text), put(&line, "\n");
    if (!line.broken) (void)!write_all(g.progress, line.data, line.size);
    finish(&t, EXIT_FAILED);
}

/* ==== 4. SHA-256 (FIPS 180-4) =============================================================================== */

static const uint32_t K256[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha256_block(uint32_t h[8], const unsigned char *p) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t a = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
        uint32_t x = s[7] + a + ((s[4] & s[5]) ^ (~s[4] & s[6])) + K256[i] + w[i];
        uint32_t b = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
        uint32_t y = b + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += x;
        s[0] = x + y;
    }
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

/* hex: 64 characters and a NUL. */
static void sha256(const void *data, size_t n, char hex[65]) {
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const unsigned char *p = data;
    size_t left = n;
    for (; left >= 64; left -= 64, p += 64) sha256_block(h, p);
    unsigned char tail[128] = {0};
    if (left) memcpy(tail, p, left);
    tail[left] = 0x80;
    size_t size = left < 56 ? 64 : 128;
    uint64_t bits = (uint64_t)n * 8;
    for (int i = 0; i < 8; i++) tail[size - 1 - (size_t)i] = (unsigned char)(bits >> 8 * i);
    sha256_block(h, tail);
    if (size == 128) sha256_block(h, tail + 64);
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 64; i++) hex[i] = digits[h[i / 8] >> (28 - 4 * (i % 8)) & 15];
    hex[64] = 0;
}

/* ==== 5. The job: key=value from argv and args=FILE ========================================================= */

enum { MAX_TENSORS = 4096, MAX_SETS = 4096, MAX_LINES = 64, MAX_REPEATS = 1000, MAX_ITERATIONS = 1000000 };

typedef struct {
    bool given;
    unsigned rank;
    int dims[MAX_RANK];
} Shape;

typedef struct {
    const char *key;
    size_t set, index;
    const char *file;
} InputFile;

static struct {
    const char *library, *runtime_dir, *model, *out_dir, *log;
    int accelerators;
    size_t signature;
    int precision, backend;
    const char *kernel_mode; /* NULL: the delegate */
    int64_t xnnpack_flags;
    const char *gpu_lines[MAX_LINES];
    size_t gpu_line_count;
    int64_t threads, warmup, iterations, iterations_ms, repeats, steps, deadline_ms, fill;
    size_t sets;
    InputFile *files;
    size_t file_count, file_capacity;
    Shape *shapes;
    size_t shape_count;
} job = {.threads = 1, .warmup = 1, .iterations = 5, .iterations_ms = 2000, .repeats = 3, .deadline_ms = 120000};

/* A refusal before anything ran: a sentence, and a result too once its place and nonce are known. */
static _Noreturn void refuse(const char *key, const char *value, const char *why) {
    char text[1024];
    int n = snprintf(text, sizeof text, "litert_agent: refused %s%s%.300s: %s\n", key, *value ? "=" : "", value, why);
    if (n >= (int)sizeof text) n = (int)sizeof text - 1;
    (void)!write_all(2, text, (size_t)n);
    if (!g.result || !g.nonce) _exit(EXIT_REFUSED);
    Text t = {0};
    g.shared->stage = "arguments";
    put_head(&t, false);
    text[n - 1] = 0;
    put(&t, ",\"status_name\":\"REFUSED\",\"error\":"), put_json(&t, text), put(&t, "}\n");
    finish(&t, EXIT_REFUSED);
}

static int64_t number(const char *key, const char *value, int64_t min, int64_t max) {
    int64_t v = 0;
    const char *p = value;
    if (!take_number(&p, max, &v) || *p || v < min) refuse(key, value, "not a whole number in the allowed range");
    return v;
}

/* Seconds with an optional fraction, as milliseconds. */
static int64_t seconds(const char *key, const char *value) {
    const char *p = value;
    int64_t whole = 0, ms = 0;
    bool ok = take_number(&p, 7 * 86400, &whole);
    if (ok && *p == '.') {
        int64_t unit = 100;
        for (p++; *p >= '0' && *p <= '9'; p++, unit /= 10) ms += (*p - '0') * unit;
    }
    if (!ok || *p || whole * 1000 + ms < 1) refuse(key, value, "not a number of seconds from 0.001 to 604800");
    return whole * 1000 + ms;
}

static int one_of(const char *key, const char *value, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(value, names[i])) return i;
    refuse(key, value, "not one of the values in PROTOCOL.md");
}

static void set_shape(const char *key, const char *value, size_t index) {
    if (index >= job.shape_count) {
        Shape *s = realloc(job.shapes, (index + 1) * sizeof *s);
        if (!s) refuse(key, value, "out of memory");
        memset(s + job.shape_count, 0, (index + 1 - job.shape_count) * sizeof *s);
        job.shapes = s, job.shape_count = index + 1;
    }
    Shape *s = &job.shapes[index];
    s->given = true, s->rank = 0;
    const char *p = value;
    while (*p) {
        int64_t d = 0;
        if (s->rank == MAX_RANK || !take_number(&p, INT32_MAX, &d) || (*p && (*p != 'x' || !p[1]))) refuse(key, value, "not a shape like 1x8x16 of at most 8 dimensions");
        s->dims[s->rank++] = (int)d;
        if (*p == 'x') p++;
    }
}

static void set_accelerators(const char *key, const char *value) {
    static const struct {
        const char *name;
        int mask;
    } known[] = {{"cpu", HW_CPU}, {"gpu", HW_GPU}, {"npu", HW_NPU}};
    job.accelerators = 0;
    for (const char *p = value;;) {
        size_t n = 0;
        while (p[n] && p[n] != ',') n++;
        int mask = 0;
        for (size_t i = 0; i < 3; i++)
            if (n == 3 && !memcmp(p, known[i].name, 3)) mask = known[i].mask;
        if (!mask || job.accelerators & mask) refuse(key, value, "not a list of cpu, gpu, npu");
        job.accelerators |= mask;
        if (!p[n]) return;
        p += n + 1;
    }
}

static void add_input(const char *key, const char *value, size_t set, size_t index) {
    if (job.file_count == job.file_capacity) {
        size_t capacity = job.file_capacity * 2 + 16;
        InputFile *f = realloc(job.files, capacity * sizeof *f);
        if (!f) refuse(key, value, "out of memory");
        job.files = f, job.file_capacity = capacity;
    }
    job.files[job.file_count++] = (InputFile){key, set, index, value};
}

/* "input.0.12" → true and numbers; `count` numbers after the prefix. */
static bool indexed(const char *key, const char *prefix, int count, int64_t max, int64_t *out) {
    size_t n = strlen(prefix);
    if (strncmp(key, prefix, n)) return false;
    const char *p = key + n;
    for (int i = 0; i < count; i++)
        if (*p++ != '.' || !take_number(&p, max, &out[i])) return false;
    return !*p;
}

static void set_nonce(const char *key, const char *value) {
    size_t n = strlen(value);
    bool ok = n >= 1 && n <= 128;
    for (const char *p = value; ok && *p; p++)
        ok = (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || *p == '.' || *p == '_' || *p == '-';
    if (!ok) refuse(key, value, "not 1 to 128 letters, digits, '.', '_' or '-'");
    g.nonce = value;
}

static void set_result(const char *key, const char *value) {
    size_t n = strlen(value);
    if (!n) refuse(key, value, "empty path");
    g.temporary = malloc(n + 5);
    if (!g.temporary) refuse(key, value, "out of memory");
    memcpy(g.temporary, value, n), memcpy(g.temporary + n, ".tmp", 5);
    g.result = value;
}

static const char *path_value(const char *key, const char *value) {
    if (!*value) refuse(key, value, "empty path");
    return value;
}

static void set_option(const char *key, const char *value) {
    static const char *const precisions[] = {"default", "fp16", "fp32", "fp16-acc32", NULL}; /* LiteRT's numbers 0 to 3 */
    static const char *const backends[] = {"auto", "opencl", "webgpu", "opengl", NULL};      /* LiteRT's numbers 0 to 3 */
    static const char *const kernels[] = {"delegate", "builtin", "reference", NULL};
    int64_t at[2];
    if (!strcmp(key, "nonce")) set_nonce(key, value);
    else if (!strcmp(key, "result")) set_result(key, value);
    else if (!strcmp(key, "library")) job.library = path_value(key, value);
    else if (!strcmp(key, "runtime_dir")) job.runtime_dir = path_value(key, value);
    else if (!strcmp(key, "model")) job.model = path_value(key, value);
    else if (!strcmp(key, "out_dir")) job.out_dir = path_value(key, value);
    else if (!strcmp(key, "log")) job.log = path_value(key, value);
    else if (!strcmp(key, "accelerators")) set_accelerators(key, value);
    else if (!strcmp(key, "signature")) job.signature = (size_t)number(key, value, 0, INT32_MAX);
    else if (!strcmp(key, "precision")) job.precision = one_of(key, value, precisions);
    else if (!strcmp(key, "backend")) job.backend = one_of(key, value, backends);
    else if (!strcmp(key, "kernel_mode")) job.kernel_mode = one_of(key, value, kernels) ? value : NULL;
    else if (!strcmp(key, "xnnpack_flags")) job.xnnpack_flags = number(key, value, 0, INT32_MAX);
    else if (!strcmp(key, "threads")) job.threads = number(key, value, 1, 1024);
    else if (!strcmp(key, "warmup")) job.warmup = number(key, value, 0, MAX_ITERATIONS);
    else if (!strcmp(key, "iterations")) job.iterations = number(key, value, 1, MAX_ITERATIONS);
    else if (!strcmp(key, "iterations_ms")) job.iterations_ms = number(key, value, 0, INT32_MAX);
    else if (!strcmp(key, "repeats")) job.repeats = number(key, value, 1, MAX_REPEATS);
    else if (!strcmp(key, "steps")) job.steps = number(key, value, 0, MAX_ITERATIONS);
    else if (!strcmp(key, "sets")) job.sets = (size_t)number(key, value, 1, MAX_SETS);
    else if (!strcmp(key, "deadline_s")) job.deadline_ms = seconds(key, value);
    else if (!strcmp(key, "fill")) job.fill = number(key, value, 0, 255);
    else if (!strcmp(key, "gpu_option")) {
        if (job.gpu_line_count == MAX_LINES) refuse(key, value, "more than 64 of them");
        job.gpu_lines[job.gpu_line_count++] = value;
    } else if (indexed(key, "input", 2, MAX_TENSORS - 1, at)) add_input(key, path_value(key, value), (size_t)at[0], (size_t)at[1]);
    else if (indexed(key, "shape", 1, MAX_TENSORS - 1, at)) set_shape(key, value, (size_t)at[0]);
    else refuse(key, value, "no such key in this protocol");
}

static void set_pair(char *pair) {
    char *equals = strchr(pair, '=');
    if (!equals || equals == pair) refuse(pair, "", "not key=value");
    *equals = 0;
    set_option(pair, equals + 1);
}

/* args=FILE: one key=value per line, so that a long job never meets a limit on argv. The text is kept: values point in. */
static void read_args(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (size < 0 || size > (64 << 20) || lseek(fd, 0, SEEK_SET) != 0) refuse("args", path, fd < 0 ? strerror(errno) : "not a readable file of at most 64 MiB");
    char *text = malloc((size_t)size + 1);
    if (!text) refuse("args", path, "out of memory");
    size_t n = 0;
    for (ssize_t k; n < (size_t)size && (k = read(fd, text + n, (size_t)size - n)) > 0;) n += (size_t)k;
    close(fd);
    if (n != (size_t)size || memchr(text, 0, n)) refuse("args", path, "cut short, or holds a NUL byte");
    text[n] = 0;
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        if (*line) {
            if (!strncmp(line, "args=", 5)) refuse("args", path, "names another args file");
            set_pair(line);
        }
        if (!end) break;
        line = end + 1;
    }
}

static void read_job(int argc, char **argv) {
    for (int i = 2; i < argc; i++) {
        if (!strncmp(argv[i], "args=", 5)) read_args(argv[i] + 5);
        else set_pair(argv[i]);
    }
    const struct {
        const char *key;
        const void *value;
    } needed[] = {{"nonce", g.nonce}, {"result", g.result}, {"library", job.library}, {"model", job.model}, {"out_dir", job.out_dir}, {"log", job.log}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!needed[i].value) refuse(needed[i].key, "", "missing, and every job needs it");
    if (!job.accelerators) refuse("accelerators", "", "missing, and every job needs it");
    if (!job.sets) refuse("sets", "", "missing, and every job needs it");
    for (size_t i = 0; i < job.file_count; i++)
        if (job.files[i].set >= job.sets) refuse(job.files[i].key, job.files[i].file, "its set number is not below sets=");
    if (job.steps && job.sets != 1) refuse("steps", "", "a stateful model takes exactly one input set per process");
}

/* From here on fds 1 and 2 are the log; the progress lines keep the stdout the host gave us. */
static void open_log(void) {
    int keep = dup(1);
    int log = open(job.log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
    if (log < 0) fail(0, errno_name(errno), "cannot write the log file: %s", strerror(errno));
    if (keep >= 0) g.progress = keep;
    dup2(log, 1), dup2(log, 2);
    if (log > 2) close(log);
}

/* ==== 6. The runtime: load, bind, options, compile ========================================================== */

static struct {
    Handle environment, model, compiled, signature;
    int64_t load_ns, environment_ns, model_ns, compile_ns, warmup_ns;
    bool fully, non_cpu_fully, has_non_cpu;
} rt;

static _Noreturn void call_failed(const char *function, Status s) {
    fail(s, status_name(s), "LiteRt%s failed: %s (%d); the log has the runtime's words", function, status_name(s), s);
}

#define CHECK(function, ...)                        \
    do {                                            \
        Status s_ = lrt_##function(__VA_ARGS__);    \
        if (s_) call_failed(#function, s_);         \
    } while (0)

static void load_runtime(void) {
    stage("dlopen");
    int64_t t0 = now_ns();
#if defined(__ANDROID__) || defined(FARM_BIONIC)
    /* Some accelerator builds use libandroid's symbols without naming it (LiteRT-LM issue 3575). */
    dlopen("libandroid.so", RTLD_NOW | RTLD_GLOBAL);
#endif
    /* llvmpipe's JIT looks maths functions up in the global scope and crashes without them; Python links libm, we do not. */
    if (!dlopen("libm.so.6", RTLD_NOW | RTLD_GLOBAL)) dlopen("libm.so", RTLD_NOW | RTLD_GLOBAL);
    void *library = dlopen(job.library, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        fail(502, status_name(502), "cannot load the runtime: %s", why ? why : "no reason given");
    }
    /* Until 2.1.2 GPU options were exported setters and a struct; from 2.1.3 on they are TOML text. */
    if (dlsym(library, "LiteRtCreateGpuOptions") || dlsym(library, "LiteRtCreateCpuOptions"))
        fail(8, status_name(8), "this runtime is older than LiteRT " MINIMUM_RUNTIME ", the first one supported; use a newer one");
    void *symbol;
#define BIND(optional, name)                                                                                      \
    symbol = dlsym(library, "LiteRt" #name);                                                                      \
    if (!symbol && !optional)                                                                                     \
        fail(8, status_name(8), "the runtime lacks LiteRt%s: not a LiteRT library of version " MINIMUM_RUNTIME " or newer", #name); \
    memcpy(&lrt_##name, &symbol, sizeof symbol); /* ISO C has no cast from object to function pointer */
#define BIND_REQUIRED(ret, name, ...) BIND(false, name)
#define BIND_OPTIONAL(ret, name, ...) BIND(true, name)
    API(BIND_REQUIRED, BIND_OPTIONAL)

    symbol = dlsym(library, "LiteRtCreateModelFromFile");
    if (!symbol) fail(8, status_name(8), "the runtime lacks LiteRtCreateModelFromFile: not a LiteRT library");
    bool with_environment = dlsym(library, "LiteRtCreateModelFromFd") != NULL; /* both came in 2.1.6 */
    rt.load_ns = now_ns() - t0;

    stage("environment");
    t0 = now_ns();
    EnvOption options[3];
    int n = 0;
    memset(options, 0, sizeof options);
    if (job.runtime_dir) options[n++] = (EnvOption){TAG_RUNTIME_DIR, {ANY_TEXT, {.text = job.runtime_dir}}};
    if (job.runtime_dir && job.accelerators & HW_NPU) options[n++] = (EnvOption){TAG_DISPATCH_DIR, {ANY_TEXT, {.text = job.runtime_dir}}};
    /* Only what was asked for is registered: a GPU driver that crashes on loading must not reach a CPU cell. */
    if (with_environment) options[n++] = (EnvOption){TAG_AUTO_REGISTER, {ANY_INT, {.integer = job.accelerators | HW_CPU}}};
    CHECK(CreateEnvironment, n, options, &rt.environment);
    rt.environment_ns = now_ns() - t0;

    stage("model");
    t0 = now_ns();
    Status s;
    if (with_environment) {
        CreateModel_t create;
        memcpy(&create, &symbol, sizeof create);
        s = create(rt.environment, job.model, &rt.model);
    } else {
        CreateModelOld_t create;
        memcpy(&create, &symbol, sizeof create);
        s = create(job.model, &rt.model);
    }
    if (s) call_failed("CreateModelFromFile", s);
    rt.model_ns = now_ns() - t0;
}

/* The runtime frees `text` itself. */
static void add_options(Handle options, const char *id, Text *text) {
    if (text->broken) fail(0, "ENOMEM", "out of memory");
    Handle opaque = NULL;
    CHECK(CreateOpaqueOptions, id, text->data, free, &opaque);
    CHECK(AddOpaqueOptions, options, opaque);
}

/* Kept where the parent sees it: a compile that fails or crashes must still say what was there. */
static void note_accelerators(void) {
    Text t = {0};
    size_t n = 0;
    if (!lrt_GetNumAccelerators || !lrt_GetAccelerator || !lrt_GetAcceleratorName || lrt_GetNumAccelerators(rt.environment, &n)) return;
    for (size_t i = 0; i < n; i++) {
        Handle a = NULL;
        const char *name = NULL;
        if (lrt_GetAccelerator(rt.environment, i, &a) || lrt_GetAcceleratorName(a, &name) || !name) continue;
        size_t before = t.size;
        if (before) put(&t, ",");
        put_json(&t, name);
        if (t.broken || t.size >= sizeof g.shared->accelerators) return;
        memcpy(g.shared->accelerators + before, t.data + before, t.size - before + 1);
    }
    free(t.data);
}

static void compile_model(void) {
    stage("options");
    Handle options = NULL;
    CHECK(CreateOptions, &options);
    CHECK(SetOptionsHardwareAccelerators, options, job.accelerators);
    Text cpu = {0};
    put(&cpu, "num_threads = "), put_int(&cpu, job.threads), put(&cpu, "\n");
    if (job.kernel_mode) put(&cpu, "kernel_mode = \""), put(&cpu, job.kernel_mode), put(&cpu, "\"\n");
    if (job.xnnpack_flags) put(&cpu, "flags = "), put_int(&cpu, job.xnnpack_flags), put(&cpu, "\n");
    add_options(options, "xnnpack", &cpu);
    if (job.accelerators & HW_GPU && (job.precision || job.backend || job.gpu_line_count)) {
        Text gpu = {0};
        if (job.precision) put(&gpu, "precision = "), put_int(&gpu, job.precision), put(&gpu, "\n");
        if (job.backend) put(&gpu, "backend = "), put_int(&gpu, job.backend), put(&gpu, "\n");
        for (size_t i = 0; i < job.gpu_line_count; i++) put(&gpu, job.gpu_lines[i]), put(&gpu, "\n");
        add_options(options, "gpu_options", &gpu);
    }
    note_accelerators();

    stage("compile");
    int64_t t0 = now_ns();
    CHECK(CreateCompiledModel, rt.environment, rt.model, options, &rt.compiled);
    rt.compile_ns = now_ns() - t0;
    CHECK(CompiledModelIsFullyAccelerated, rt.compiled, &rt.fully);
    rt.has_non_cpu = lrt_CompiledModelIsNonCpuFullyAccelerated && !lrt_CompiledModelIsNonCpuFullyAccelerated(rt.compiled, &rt.non_cpu_fully);
}

/* ==== 7. Tensors of the signature =========================================================================== */

typedef struct {
    const char *name;
    TensorType type;
    Handle buffer;
    size_t size;
} Tensor;

static Tensor *inputs, *outputs;
static Handle *input_buffers, *output_buffers;
static size_t input_count, output_count;

static void open_signature(void) {
    stage("signature");
    size_t n = 0;
    CHECK(GetNumModelSignatures, rt.model, &n);
    if (job.signature >= n) fail(1000, status_name(1000), "the model has %zu signature(s), number %zu was asked for", n, job.signature);
    CHECK(GetModelSignature, rt.model, job.signature, &rt.signature);
    CHECK(GetNumSignatureInputs, rt.signature, &input_count);
    CHECK(GetNumSignatureOutputs, rt.signature, &output_count);
    if (input_count > MAX_TENSORS || output_count > MAX_TENSORS) fail(5, status_name(5), "more than %d inputs or outputs", (int)MAX_TENSORS);
    inputs = grab(input_count, sizeof *inputs), outputs = grab(output_count, sizeof *outputs);
    input_buffers = grab(input_count, sizeof *input_buffers), output_buffers = grab(output_count, sizeof *output_buffers);
    for (size_t i = 0; i < input_count; i++) {
        Handle tensor = NULL;
        CHECK(GetSignatureInputName, rt.signature, i, &inputs[i].name);
        /* By index where the runtime can: two inputs may bear the same name. */
        if (lrt_GetSignatureInputTensorByIndex) CHECK(GetSignatureInputTensorByIndex, rt.signature, i, &tensor);
        else CHECK(GetSignatureInputTensor, rt.signature, inputs[i].name, &tensor);
        CHECK(GetRankedTensorType, tensor, &inputs[i].type);
    }
    for (size_t i = 0; i < output_count; i++) {
        Handle tensor = NULL;
        CHECK(GetSignatureOutputName, rt.signature, i, &outputs[i].name);
        if (lrt_GetSignatureOutputTensorByIndex) CHECK(GetSignatureOutputTensorByIndex, rt.signature, i, &tensor);
        else CHECK(GetSignatureOutputTensor, rt.signature, outputs[i].name, &tensor);
        CHECK(GetRankedTensorType, tensor, &outputs[i].type);
    }
}

static void resize_inputs(void) {
    stage("resize");
    for (size_t i = 0; i < job.shape_count; i++) {
        const Shape *s = &job.shapes[i];
        if (!s->given) continue;
        if (i >= input_count) fail(1000, status_name(1000), "shape.%zu given, but the signature has %zu input(s)", i, input_count);
        /* NonStrict also resizes where the model's shape_signature names no dynamic dimension. */
        if (lrt_CompiledModelResizeInputTensorNonStrict) CHECK(CompiledModelResizeInputTensorNonStrict, rt.compiled, job.signature, i, s->dims, s->rank);
        else if (lrt_CompiledModelResizeInputTensor) CHECK(CompiledModelResizeInputTensor, rt.compiled, job.signature, i, s->dims, s->rank);
        else fail(5, status_name(5), "this runtime cannot resize inputs; use a newer one, or a model of fixed shape");
    }
}

static void check_layout(const char *what, size_t i, const Layout *l) {
    if (l->rank > MAX_RANK) fail(5, status_name(5), "%s %zu has rank %u; at most %d is supported", what, i, l->rank, (int)MAX_RANK);
    for (unsigned d = 0; d < l->rank; d++)
        if (l->dims[d] < 0) fail(5, status_name(5), "%s %zu has a dynamic shape; give shape.N for the inputs", what, i);
}

static void make_buffer(const char *what, size_t i, Tensor *t, Handle requirements, Handle *slot) {
    check_layout(what, i, &t->type.layout);
    if (t->type.element_type == 5) fail(5, status_name(5), "%s %zu holds strings, which LiteRT's tensor buffers cannot carry", what, i);
    CHECK(CreateManagedTensorBufferFromRequirements, rt.environment, &t->type, requirements, &t->buffer);
    CHECK(GetTensorBufferPackedSize, t->buffer, &t->size);
    *slot = t->buffer;
}

/* Outputs the runtime never writes must not look like numbers: with fill=NN they start as that byte. */
static void fill_outputs(void) {
    if (!job.fill) return;
    for (size_t i = 0; i < output_count; i++) {
        void *p = NULL;
        if (!outputs[i].size) continue;
        CHECK(LockTensorBuffer, outputs[i].buffer, &p, FOR_WRITE);
        memset(p, (int)job.fill, outputs[i].size);
        CHECK(UnlockTensorBuffer, outputs[i].buffer);
    }
}

static void make_buffers(void) {
    stage("buffers");
    for (size_t i = 0; i < input_count; i++) {
        Layout l;
        Handle requirements = NULL;
        if (!lrt_GetCompiledModelInputTensorLayout(rt.compiled, job.signature, i, &l)) inputs[i].type.layout = l;
        CHECK(GetCompiledModelInputBufferRequirements, rt.compiled, job.signature, i, &requirements);
        make_buffer("input", i, &inputs[i], requirements, &input_buffers[i]);
    }
    /* update_allocation = true, or outputs whose declared shape is stale give errors or garbage. */
    Layout *layouts = grab(output_count, sizeof *layouts);
    CHECK(GetCompiledModelOutputTensorLayouts, rt.compiled, job.signature, output_count, layouts, true);
    for (size_t i = 0; i < output_count; i++) {
        Handle requirements = NULL;
        outputs[i].type.layout = layouts[i];
        CHECK(GetCompiledModelOutputBufferRequirements, rt.compiled, job.signature, i, &requirements);
        make_buffer("output", i, &outputs[i], requirements, &output_buffers[i]);
    }
    free(layouts);
    fill_outputs();
}

static void load_inputs(size_t set) {
    stage("inputs");
    size_t loaded = 0;
    for (size_t k = 0; k < job.file_count; k++) {
        const InputFile *f = &job.files[k];
        if (f->set != set) continue;
        if (f->index >= input_count) fail(1000, status_name(1000), "%s given, but the signature has %zu input(s)", f->key, input_count);
        Tensor *t = &inputs[f->index];
        int fd = open(f->file, O_RDONLY | O_CLOEXEC);
        if (fd < 0) fail(500, errno_name(errno), "cannot read %s: %s", f->key, strerror(errno));
        off_t size = lseek(fd, 0, SEEK_END);
        if (size < 0 || (size_t)size != t->size) fail(1, status_name(1), "%s has %lld bytes, the tensor takes %zu", f->key, (long long)size, t->size);
        lseek(fd, 0, SEEK_SET);
        void *p = NULL;
        if (t->size) {
            CHECK(LockTensorBuffer, t->buffer, &p, FOR_WRITE);
            size_t n = 0;
            for (ssize_t r; n < t->size && (r = read(fd, (char *)p + n, t->size - n)) > 0;) n += (size_t)r;
            if (n != t->size) fail(500, "EIO", "%s could not be read whole", f->key);
            CHECK(UnlockTensorBuffer, t->buffer);
        }
        close(fd);
        loaded++;
    }
    if (loaded != input_count) fail(4, status_name(4), "input set %zu has %zu file(s), the signature takes %zu input(s)", set, loaded, input_count);
}

/* ==== 8. Runs =============================================================================================== */

typedef struct {
    char sha256[65];
    bool written; /* its bytes lie in a file of their own */
} Repeat;

typedef struct {
    size_t size;
    Layout layout;
    size_t repeat_count;
    Repeat *repeats;
} Output;

typedef struct {
    size_t set, step;
    Output *outputs;
    size_t timed;
    int64_t *latency_ns, *run_ns;
} Run;

static Run *runs;
static size_t run_count;

/* One inference, timed: `run_ns` until the call returns, `latency_ns` until every output could be read. */
static void infer(int64_t *run_ns, int64_t *latency_ns) {
    int64_t t0 = now_ns();
    CHECK(RunCompiledModel, rt.compiled, job.signature, input_count, input_buffers, output_count, output_buffers);
    *run_ns = now_ns() - t0;
    for (size_t i = 0; i < output_count; i++) {
        void *p = NULL;
        if (!outputs[i].size) continue;
        CHECK(LockTensorBuffer, outputs[i].buffer, &p, FOR_READ);
        CHECK(UnlockTensorBuffer, outputs[i].buffer);
    }
    *latency_ns = now_ns() - t0;
}

static void file_name(Text *t, const Run *r, size_t index, size_t repeat) {
    put_int(t, (int64_t)r->set), put(t, "."), put_int(t, (int64_t)r->step), put(t, "."), put_int(t, (int64_t)index);
    if (repeat) put(t, ".r"), put_int(t, (int64_t)repeat);
    put(t, ".raw");
}

/* Hash every output as it is now; keep its bytes if they are the first, or differ from the first. */
static void keep_outputs(Run *r, size_t repeat) {
    for (size_t i = 0; i < output_count; i++) {
        Output *o = &r->outputs[i];
        void *p = NULL;
        if (outputs[i].size) CHECK(LockTensorBuffer, outputs[i].buffer, &p, FOR_READ);
        o->size = outputs[i].size, o->layout = outputs[i].type.layout;
        Repeat *now = &o->repeats[repeat];
        sha256(p, o->size, now->sha256);
        o->repeat_count = repeat + 1;
        if (repeat == 0 || strcmp(now->sha256, o->repeats[0].sha256)) {
            Text path = {0};
            put(&path, job.out_dir), put(&path, "/");
            file_name(&path, r, i, repeat);
            if (path.broken) fail(0, "ENOMEM", "out of memory");
            if (!write_file(path.data, p, o->size, false)) fail(0, errno_name(errno), "cannot write output %zu: %s", i, strerror(errno));
            free(path.data);
            now->written = true;
        }
        if (outputs[i].size) CHECK(UnlockTensorBuffer, outputs[i].buffer);
    }
}

static void open_run(Run *r, size_t set, size_t step, size_t repeats, size_t times) {
    r->set = set, r->step = step;
    r->outputs = grab(output_count, sizeof *r->outputs);
    for (size_t i = 0; i < output_count; i++) r->outputs[i].repeats = grab(repeats, sizeof(Repeat));
    r->latency_ns = grab(times, sizeof(int64_t)), r->run_ns = grab(times, sizeof(int64_t));
}

/* Stateful: the same inputs again and again, each step's outputs kept; nothing before the first step. */
static void run_steps(void) {
    run_count = (size_t)job.steps;
    runs = grab(run_count, sizeof *runs);
    load_inputs(0);
    stage("run");
    for (size_t s = 0; s < run_count; s++) {
        open_run(&runs[s], 0, s, 1, 1);
        infer(&runs[s].run_ns[0], &runs[s].latency_ns[0]);
        runs[s].timed = 1;
        keep_outputs(&runs[s], 0);
    }
}

static void run_sets(void) {
    run_count = job.sets;
    runs = grab(run_count, sizeof *runs);
    size_t repeats = (size_t)job.repeats, most = (size_t)(job.iterations > job.repeats ? job.iterations : job.repeats);
    for (size_t s = 0; s < job.sets; s++) {
        Run *r = &runs[s];
        load_inputs(s);
        open_run(r, s, 0, repeats, most);
        if (s == 0 && job.warmup) {
            stage("warmup");
            int64_t t0 = now_ns(), unused;
            for (int64_t k = 0; k < job.warmup; k++) infer(&unused, &unused);
            rt.warmup_ns = now_ns() - t0;
        }
        stage("run");
        int64_t spent = 0;
        for (size_t k = 0; k < most; k++) {
            if (k >= repeats && spent >= job.iterations_ms * 1000000) break;
            infer(&r->run_ns[k], &r->latency_ns[k]);
            spent += r->latency_ns[k];
            r->timed = k + 1;
            if (k < repeats) keep_outputs(r, k);
        }
    }
}

/* ==== 9. The result of a success ============================================================================ */

static void put_shape(Text *t, const Layout *l) {
    put(t, "[");
    for (unsigned d = 0; d < l->rank; d++) put(t, d ? "," : ""), put_int(t, l->dims[d]);
    put(t, "]");
}

static void put_tensors(Text *t, const char *key, const Tensor *tensors, size_t n) {
    put(t, ",\""), put(t, key), put(t, "\":[");
    for (size_t i = 0; i < n; i++) {
        put(t, i ? ",{\"index\":" : "{\"index\":"), put_int(t, (int64_t)i);
        put(t, ",\"name\":"), put_json(t, tensors[i].name);
        put(t, ",\"dtype\":"), put_json(t, dtype_name(tensors[i].type.element_type));
        put(t, ",\"shape\":"), put_shape(t, &tensors[i].type.layout);
        put(t, ",\"size_bytes\":"), put_int(t, (int64_t)tensors[i].size), put(t, "}");
    }
    put(t, "]");
}

static void put_output(Text *t, const Run *r, size_t index) {
    const Output *o = &r->outputs[index];
    put(t, "{\"index\":"), put_int(t, (int64_t)index);
    put(t, ",\"sha256\":\""), put(t, o->repeats[0].sha256);
    put(t, "\",\"size_bytes\":"), put_int(t, (int64_t)o->size);
    put(t, ",\"file\":\""), file_name(t, r, index, 0);
    put(t, "\",\"shape\":"), put_shape(t, &o->layout);
    put(t, ",\"repeat_sha256\":[");
    for (size_t k = 0; k < o->repeat_count; k++) put(t, k ? ",\"" : "\""), put(t, o->repeats[k].sha256), put(t, "\"");
    put(t, "],\"repeat_files\":{");
    bool first = true;
    for (size_t k = 1; k < o->repeat_count; k++) {
        if (!o->repeats[k].written) continue;
        put(t, first ? "\"" : ",\""), put_int(t, (int64_t)k), put(t, "\":\""), file_name(t, r, index, k), put(t, "\"");
        first = false;
    }
    put(t, "}}");
}

static void put_times(Text *t, const char *key, const int64_t *ns, size_t n) {
    put(t, ",\""), put(t, key), put(t, "\":[");
    for (size_t k = 0; k < n; k++) put(t, k ? "," : ""), put_ms(t, ns[k]);
    put(t, "]");
}

static _Noreturn void succeed(void) {
    stage("done");
    Text t = {0};
    put_head(&t, true);
    put(&t, ",\"status\":0,\"status_name\":\"Ok\",\"fully_accelerated\":"), put(&t, rt.fully ? "true" : "false");
    put(&t, ",\"non_cpu_fully_accelerated\":"), put(&t, !rt.has_non_cpu ? "null" : rt.non_cpu_fully ? "true" : "false");
    put_tensors(&t, "inputs", inputs, input_count);
    put_tensors(&t, "outputs", outputs, output_count);
    put(&t, ",\"runs\":[");
    for (size_t s = 0; s < run_count; s++) {
        const Run *r = &runs[s];
        put(&t, s ? ",{\"set\":" : "{\"set\":"), put_int(&t, (int64_t)r->set);
        put(&t, ",\"step\":"), put_int(&t, (int64_t)r->step), put(&t, ",\"outputs\":[");
        for (size_t i = 0; i < output_count; i++) put(&t, i ? "," : ""), put_output(&t, r, i);
        put(&t, "]");
        put_times(&t, "latency_ms", r->latency_ns, r->timed);
        put_times(&t, "run_ms", r->run_ns, r->timed);
        put(&t, "}");
    }
    put(&t, "],\"load_ms\":"), put_ms(&t, rt.load_ns);
    put(&t, ",\"environment_ms\":"), put_ms(&t, rt.environment_ns);
    put(&t, ",\"model_ms\":"), put_ms(&t, rt.model_ns);
    put(&t, ",\"compile_ms\":"), put_ms(&t, rt.compile_ns);
    put(&t, ",\"warmup_ms\":"), put_ms(&t, rt.warmup_ns);
    put(&t, "}\n");
    finish(&t, EXIT_DONE);
}

/* ==== 10. The watching parent =============================================================================== */

/* In the worker: note the signal and leave at once. No core dump or tombstone of a gigabyte that nobody reads, and
 * nothing cleverer either: the process is broken. A crash without stack to run this on the parent sees all the same. */
static void on_crash(int sig) {
    g.shared->signal = sig;
    _exit(EXIT_SIGNAL + sig);
}

static volatile sig_atomic_t g_worker, g_timed_out;

static void on_parent_signal(int sig) {
    if (sig == SIGALRM) g_timed_out = 1;
    if (g_worker > 0) kill((pid_t)g_worker, sig == SIGALRM ? SIGKILL : sig);
}

/* SIGALRM in so many milliseconds of wall clock; 0 disarms. */
static void set_timer(int64_t ms) {
    struct itimerval t;
    memset(&t, 0, sizeof t);
    t.it_value.tv_sec = ms / 1000;
    t.it_value.tv_usec = ms % 1000 * 1000;
    setitimer(ITIMER_REAL, &t, NULL);
}

/* The parent's result for a worker that left none. */
static _Noreturn void report_death(int status) {
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILED;
    int sig = WIFSIGNALED(status) ? WTERMSIG(status) : g.shared->signal;
    const char *where = g.shared->stage;
    char error[256], line[96];
    const char *name = "";
    if (g_timed_out) {
        snprintf(error, sizeof error, "the agent's own deadline passed in stage %s", where);
        snprintf(line, sizeof line, "@timeout %s\n", where);
        code = EXIT_TIMED_OUT, sig = 0;
    } else if (sig) {
        const char *why = sig == SIGKILL ? ": killed from outside, perhaps for want of memory" : "";
        snprintf(error, sizeof error, "ended by signal %d in stage %s%s", sig, where, why);
        snprintf(line, sizeof line, "@signal %d %s\n", sig, where);
        code = EXIT_SIGNAL + sig;
    } else {
        /* Abseil's CHECK ends some runtimes this way. */
        name = "EXITED";
        snprintf(error, sizeof error, "the runtime ended the process by exit(%d) in stage %s; the log has its words", code, where);
        snprintf(line, sizeof line, "@exit %d %s\n", code, where);
    }
    (void)!write_all(g.progress, line, strlen(line));
    Text t = {0};
    put_head(&t, false);
    put(&t, ",\"status_name\":"), put_json(&t, name);
    put(&t, ",\"signal\":"), put_int(&t, sig);
    put(&t, ",\"timed_out\":"), put(&t, g_timed_out ? "true" : "false");
    put(&t, ",\"error\":"), put_json(&t, error), put(&t, "}\n");
    finish(&t, code ? code : EXIT_FAILED);
}

/* Fork the worker and return in it; the parent never returns. Nothing has been loaded yet, so the fork is clean. */
static void split_off_worker(void) {
    void *page = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) fail(0, "ENOMEM", "cannot share memory with the worker: %s", strerror(errno));
    g.shared = page;
    *g.shared = g_start;
    signal(SIGPIPE, SIG_IGN); /* a lost link must not end a run whose result is a file */
    pid_t parent = getpid(), worker = fork();
    if (worker < 0) fail(0, "ENOMEM", "cannot start the worker: %s", strerror(errno));
    if (worker == 0) {
#ifdef __linux__
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* whoever kills the parent means both */
        if (getppid() != parent) _exit(EXIT_SIGNAL + SIGKILL);
#else
        (void)parent;
#endif
        static const int crashes[] = {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
        for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++) signal(crashes[i], on_crash);
        set_timer(job.deadline_ms + 5000); /* where no parent death signal exists: an orphan ends too */
        return;
    }
    g_worker = worker;
    g.usage = RUSAGE_CHILDREN;
    signal(SIGTERM, on_parent_signal), signal(SIGINT, on_parent_signal), signal(SIGHUP, on_parent_signal);
    signal(SIGALRM, on_parent_signal);
    set_timer(job.deadline_ms);
    int status = 0;
    while (waitpid(worker, &status, 0) < 0)
        if (errno != EINTR) fail(0, "EIO", "lost the worker: %s", strerror(errno));
    g_worker = 0;
    set_timer(0);
    unlink(g.temporary);
    if (g.shared->committed) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_DONE);
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_NO_RESULT) _exit(EXIT_NO_RESULT);
    report_death(status);
}

#ifdef __linux__
/* A farm that was killed stays a zombie until its own parent has looked; kill(pid, 0) still finds it then. */
static bool is_gone(pid_t pid) {
    if (kill(pid, 0) && errno == ESRCH) return true;
    char path[64], stat[512] = {0};
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t size = read(fd, stat, sizeof stat);
    close(fd);
    ssize_t end = size - 3; /* "PID (NAME) STATE …", and NAME may hold anything, ')' too */
    while (end >= 0 && stat[end] != ')') end--;
    return end >= 0 && (stat[end + 2] == 'Z' || stat[end + 2] == 'X');
}
#endif

/* FARM_PARENT=PID in the environment: end with the farm that started us on its own machine, even if it is killed. */
static void die_with_farm(void) {
#ifdef __linux__
    const char *p = getenv("FARM_PARENT");
    int64_t pid = 0;
    if (!p || !take_number(&p, INT32_MAX, &pid) || *p || pid < 1) return;
    /* Only for the direct parent: a wrapper between us (nice, a shell) would be the one the kernel watches. */
    bool direct = getppid() == (pid_t)pid;
    if (direct) prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != (pid_t)pid && (direct || is_gone((pid_t)pid))) _exit(EXIT_SIGNAL + SIGKILL);
#endif
}

/* ==== 11. Main ============================================================================================== */

int main(int argc, char **argv) {
    g.started_ns = now_ns();
    die_with_farm();
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        const char *text = "protocol=1 agent=" AGENT_VERSION " platform=" PLATFORM "\n";
        return write_all(1, text, strlen(text)) ? 0 : EXIT_NO_RESULT;
    }
    int64_t protocol = -1;
    const char *p = argc > 1 ? argv[1] : "";
    if (!take_number(&p, INT32_MAX, &protocol) || *p || protocol != PROTOCOL) {
        static const char text[] = "litert_agent: the first argument must be protocol version 1, the only one this agent speaks; "
                                   "install the agent that came with your farm\n";
        (void)!write_all(2, text, sizeof text - 1);
        return EXIT_REFUSED;
    }
    read_job(argc, argv);
    split_off_worker();
    open_log();
    load_runtime();
    compile_model();
    open_signature();
    resize_inputs();
    make_buffers();
    if (job.steps) run_steps();
    else run_sets();
    succeed();
}
