/* libsoftrdma-paths.so: calls that name a path below /sys/class/infiniband or /dev/infiniband get
 * one below the folder of SOFTRDMA_SYSFS, where `softrdma run` has made what would be there. It is
 * preloaded where a mount namespace, which does the same for every program, is forbidden.
 *
 * Only calls of libc that a program makes itself are seen: no system calls of its own, and none
 * that libc makes inside of another of its functions, but for those that are here as well. */

#define _GNU_SOURCE
#undef _FORTIFY_SOURCE

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const folders[] = {
	"/sys/class/infiniband",
	"/sys/class/infiniband_verbs",
	"/dev/infiniband",
};

/* Where the files are instead; empty: nothing is changed. */
static char root[PATH_MAX];

__attribute__((constructor)) static void find_root(void)
{
	const char *named = getenv("SOFTRDMA_SYSFS");

	if (named && named[0] == '/' && strlen(named) < sizeof(root))
		strcpy(root, named);
}

/* The path to use instead of `path`: itself, or one that is written to `room`. */
static const char *instead(const char *path, char room[PATH_MAX])
{
	if (!path || path[0] != '/' || !root[0])
		return path;
	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
		size_t length = strlen(folders[i]);

		if (strncmp(path, folders[i], length) == 0 &&
		    (path[length] == '\0' || path[length] == '/')) {
			int written = snprintf(room, PATH_MAX, "%s%s", root, path);

			return written < PATH_MAX ? room : path;
		}
	}
	return path;
}

/* The next library's function of this name, which has the type of ours. There is one: libc is
 * always loaded. */
#define NEXT(name)                                                                              \
	static __typeof__(&name) next;                                                          \
	if (!__atomic_load_n(&next, __ATOMIC_RELAXED))                                          \
		__atomic_store_n(&next, (__typeof__(&name))dlsym(RTLD_NEXT, #name),             \
				 __ATOMIC_RELAXED)

/* The mode is there only where a file may be made. */
#define MODE(flags)                                                                             \
	mode_t mode = 0;                                                                        \
	if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) {                                 \
		va_list arguments;                                                              \
		va_start(arguments, flags);                                                     \
		mode = va_arg(arguments, mode_t);                                               \
		va_end(arguments);                                                              \
	}

#define OPEN(name)                                                                              \
	int name(const char *path, int flags, ...)                                              \
	{                                                                                       \
		char room[PATH_MAX];                                                            \
		MODE(flags)                                                                     \
		NEXT(name);                                                                     \
		return next(instead(path, room), flags, mode);                                  \
	}

#define OPENAT(name)                                                                            \
	int name(int folder, const char *path, int flags, ...)                                  \
	{                                                                                       \
		char room[PATH_MAX];                                                            \
		MODE(flags)                                                                     \
		NEXT(name);                                                                     \
		return next(folder, instead(path, room), flags, mode);                          \
	}

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* What the compiler calls in place of these where it checks that no mode is missing. */

int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int folder, const char *path, int flags);
int __openat64_2(int folder, const char *path, int flags);

int __open_2(const char *path, int flags)
{
	return open(path, flags);
}

int __open64_2(const char *path, int flags)
{
	return open64(path, flags);
}

int __openat_2(int folder, const char *path, int flags)
{
	return openat(folder, path, flags);
}

int __openat64_2(int folder, const char *path, int flags)
{
	return openat64(folder, path, flags);
}

#define FOPEN(name)                                                                             \
	FILE *name(const char *path, const char *how)                                           \
	{                                                                                       \
		char room[PATH_MAX];                                                            \
		NEXT(name);                                                                     \
		return next(instead(path, room), how);                                          \
	}

FOPEN(fopen)
FOPEN(fopen64)

DIR *opendir(const char *path)
{
	char room[PATH_MAX];
	NEXT(opendir);
	return next(instead(path, room));
}

#define SCANDIR(name, entry)                                                                    \
	int name(const char *path, struct entry ***list,                                        \
		 int (*wanted)(const struct entry *),                                           \
		 int (*order)(const struct entry **, const struct entry **))                    \
	{                                                                                       \
		char room[PATH_MAX];                                                            \
		NEXT(name);                                                                     \
		return next(instead(path, room), list, wanted, order);                          \
	}

SCANDIR(scandir, dirent)
SCANDIR(scandir64, dirent64)

#define STAT(name, result)                                                                      \
	int name(const char *path, struct result *to)                                           \
	{                                                                                       \
		char room[PATH_MAX];                                                            \
		NEXT(name);                                                                     \
		return next(instead(path, room), to);                                           \
	}

STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

#define STATAT(name, result)                                                                    \
	int name(int folder, const char *path, struct result *to, int flags)                    \
	{                                                                                       \
		char room[PATH_MAX];                                                            \
		NEXT(name);                                                                     \
		return next(folder, instead(path, room), to, flags);                            \
	}

STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

int statx(int folder, const char *path, int flags, unsigned int mask, struct statx *to)
{
	char room[PATH_MAX];
	NEXT(statx);
	return next(folder, instead(path, room), flags, mask, to);
}

/* What programs from before glibc 2.33 call for stat. */
#define XSTAT(name, result)                                                                     \
	int name(int version, const char *path, struct result *to);                             \
	int name(int version, const char *path, struct result *to)                              \
	{                                                                                       \
		char room[PATH_MAX];                                                            \
		NEXT(name);                                                                     \
		return next(version, instead(path, room), to);                                  \
	}

XSTAT(__xstat, stat)
XSTAT(__xstat64, stat64)
XSTAT(__lxstat, stat)
XSTAT(__lxstat64, stat64)

int access(const char *path, int how)
{
	char room[PATH_MAX];
	NEXT(access);
	return next(instead(path, room), how);
}

int faccessat(int folder, const char *path, int how, int flags)
{
	char room[PATH_MAX];
	NEXT(faccessat);
	return next(folder, instead(path, room), how, flags);
}

ssize_t readlink(const char *path, char *to, size_t size)
{
	char room[PATH_MAX];
	NEXT(readlink);
	return next(instead(path, room), to, size);
}

ssize_t readlinkat(int folder, const char *path, char *to, size_t size)
{
	char room[PATH_MAX];
	NEXT(readlinkat);
	return next(folder, instead(path, room), to, size);
}

/* The answer names the place that the program knows. */
static char *as_known(char *path)
{
	size_t length = strlen(root);

	if (path && length && strncmp(path, root, length) == 0 && path[length] == '/')
		memmove(path, path + length, strlen(path + length) + 1);
	return path;
}

char *realpath(const char *path, char *to)
{
	char room[PATH_MAX];
	NEXT(realpath);
	return as_known(next(instead(path, room), to));
}

char *canonicalize_file_name(const char *path)
{
	return realpath(path, NULL);
}
