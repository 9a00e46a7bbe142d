/* One function of librdmacm.so.1: a jump to the private, versioned softrdma_<name> of
 * libibverbs.so.1. A jump keeps every register and the stack as the caller left them, so it serves
 * any signature, also the variadic rfcntl. A new architecture needs its own tail jump here. */

#if defined(__x86_64__)
#define TAIL_JUMP(target) "endbr64\n\tjmp *" target "@GOTPCREL(%rip)"
#elif defined(__aarch64__)
#define TAIL_JUMP(target) "hint #34\n\tb " target
#elif defined(__riscv)
#define TAIL_JUMP(target) "tail " target "@plt"
#elif defined(__powerpc64__) && _CALL_ELF == 2
#define TAIL_JUMP(target) "b " target
#else
#error "librdmacm.so.1: how does this architecture jump to a symbol of another object?"
#endif

#define JUMP(name)                                                                              \
	__asm__(".text\n"                                                                       \
		"\t.p2align 4\n"                                                                \
		"\t.globl " #name "\n"                                                          \
		"\t.type " #name ", %function\n"                                                \
		#name ":\n"                                                                     \
		"\t" TAIL_JUMP("softrdma_" #name) "\n"                                          \
		"\t.size " #name ", .-" #name "\n");
