/* Entry point for an Android executable linked without the NDK (see README.md): what crtbegin_dynamic.o would do, and
 * the one symbol that glibc's headers name otherwise than bionic does. */
struct structors {
    void (**preinit)(void);
    void (**init)(void);
    void (**fini)(void);
};
extern void __libc_init(void *raw_args, void (*onexit)(void), int (*main)(int, char **, char **), const struct structors *);
extern int main(int, char **, char **);
extern int *__errno(void);

int *__errno_location(void) { return __errno(); }

static const struct structors none;

__attribute__((used)) static void start_c(void *stack) { __libc_init(stack, 0, main, &none); }

#if defined(__aarch64__)
__asm__(".globl _start\n_start:\n mov x29, xzr\n mov x30, xzr\n mov x0, sp\n b start_c\n");
#elif defined(__x86_64__)
__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call start_c\n");
#endif

/* .note.android.ident: API level 26, the lowest the agent is meant for. */
__asm__(".section .note.android.ident,\"a\",%note\n .balign 4\n .long 8\n .long 4\n .long 1\n .asciz \"Android\"\n .long 26\n .previous\n");
