/* Records what a process does to the files below a folder, in order, for the simulation of power loss.

   Loaded with LD_PRELOAD; RECORD_ROOT names the folder and RECORD_LOG the file for the records. Each call is
   made and recorded under one lock, so the order of the records is the order of the calls. A record is a
   header, the name it concerns, a second name, and the bytes written. Writes through mmap are not seen;
   SQLite uses it for its shared memory only, which does not outlive a crash. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, SYNC, RENAME, UNLINK, MKDIR, LINK };

struct header {
    uint32_t op, name_size, other_size, size;
    uint64_t inode, folder, other_folder;
    int64_t offset;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *root;
static size_t root_size;
static int log_file = -1;

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("RECORD_LOG");
    root = getenv("RECORD_ROOT");
    if (!root || !path) return;
    root_size = strlen(root);
    log_file = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int is_below(const char *path) {
    return log_file >= 0 && !strncmp(path, root, root_size) && (!path[root_size] || path[root_size] == '/');
}

static int path_of(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_below(path);
}

static int path_at(int folder, const char *name, char *path) {
    char start[PATH_MAX] = "";
    if (log_file < 0 || !name) return 0;
    if (name[0] != '/') {
        if (folder != AT_FDCWD) path_of(folder, start);
        else if (!getcwd(start, sizeof start)) return 0;
        if (!start[0]) return 0;
        if (snprintf(path, PATH_MAX, "%s/%s", start, name) >= PATH_MAX) return 0;
    } else if (snprintf(path, PATH_MAX, "%s", name) >= PATH_MAX) return 0;
    return is_below(path);
}

static uint64_t inode_at(const char *path) {
    struct stat found;
    return lstat(path, &found) ? 0 : found.st_ino;
}

static uint64_t inode_of(int file) {
    struct stat found;
    return fstat(file, &found) ? 0 : found.st_ino;
}

/* Split off the last component, and return the inode of the folder above it. */
static uint64_t folder_of(const char *path, const char **name) {
    char above[PATH_MAX];
    const char *slash = strrchr(path, '/');
    *name = slash + 1;
    snprintf(above, sizeof above, "%.*s", (int)(slash - path), path);
    return inode_at(above);
}

static void record(int op, uint64_t inode, const char *path, const char *other, int64_t offset,
                   const void *data, size_t size) {
    struct header header = {.op = op, .inode = inode, .offset = offset, .size = size};
    const char *name = "", *other_name = "";
    if (path) header.folder = folder_of(path, &name);
    if (other) header.other_folder = folder_of(other, &other_name);
    header.name_size = strlen(name);
    header.other_size = strlen(other_name);
    struct iovec pieces[] = {{&header, sizeof header}, {(void *)name, header.name_size},
                             {(void *)other_name, header.other_size}, {(void *)data, size}};
    int saved = errno;
    if (syscall(SYS_writev, log_file, pieces, 4) != (ssize_t)(sizeof header + header.name_size + header.other_size + size))
        abort();
    errno = saved;
}

static int opened(int (*real)(int, const char *, int, ...), int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    if (!(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE || !path_at(folder, name, path))
        return real(folder, name, flags, mode);
    pthread_mutex_lock(&lock);
    uint64_t before = inode_at(path);
    int file = real(folder, name, flags, mode);
    if (file >= 0 && !before) record(CREATE, inode_of(file), path, NULL, 0, NULL, 0);
    else if (file >= 0 && (flags & O_TRUNC)) record(TRUNCATE, inode_of(file), NULL, NULL, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return file;
}

#define OPEN(function, ...)                                                                                       \
    mode_t mode = 0;                                                                                              \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                          \
        va_list rest;                                                                                             \
        va_start(rest, flags);                                                                                    \
        mode = va_arg(rest, mode_t);                                                                              \
        va_end(rest);                                                                                             \
    }                                                                                                             \
    return opened((int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, function), __VA_ARGS__, flags, mode)

int open(const char *name, int flags, ...) { OPEN("openat", AT_FDCWD, name); }
int open64(const char *name, int flags, ...) { OPEN("openat64", AT_FDCWD, name); }
int openat(int folder, const char *name, int flags, ...) { OPEN("openat", folder, name); }
int openat64(int folder, const char *name, int flags, ...) { OPEN("openat64", folder, name); }

static off_t position(int file) {
    int flags = fcntl(file, F_GETFL);
    return flags & O_APPEND ? lseek(file, 0, SEEK_END) : lseek(file, 0, SEEK_CUR);
}

/* Record what a call has written. If it had no single buffer, read it back. (Not otherwise: closing a file
   releases the locks that this process has on it.) */
static void wrote(int file, off_t offset, const void *buffer, ssize_t size) {
    char path[PATH_MAX], link[64];
    if (size <= 0 || !path_of(file, path)) return;
    if (buffer) {
        record(WRITE, inode_of(file), NULL, NULL, offset, buffer, size);
        return;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    int again = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC);
    char *data = malloc(size);
    if (again < 0 || !data || syscall(SYS_pread64, again, data, size, offset) != size) abort();
    syscall(SYS_close, again);
    record(WRITE, inode_of(file), NULL, NULL, offset, data, size);
    free(data);
}

#define WRITES(file, start, buffer, call)                                                                                 \
    char path[PATH_MAX];                                                                                          \
    if (log_file < 0 || !path_of(file, path)) return call;                                                        \
    pthread_mutex_lock(&lock);                                                                                    \
    off_t begin = start;                                                                                          \
    ssize_t size = call;                                                                                          \
    int saved = errno;                                                                                            \
    wrote(file, begin, buffer, size);                                                                               \
    errno = saved;                                                                                                \
    pthread_mutex_unlock(&lock);                                                                                  \
    return size

ssize_t write(int file, const void *data, size_t count) {
    REAL(write);
    WRITES(file, position(file), data, real(file, data, count));
}
ssize_t writev(int file, const struct iovec *pieces, int count) {
    REAL(writev);
    WRITES(file, position(file), NULL, real(file, pieces, count));
}
ssize_t pwrite(int file, const void *data, size_t count, off_t offset) {
    REAL(pwrite);
    WRITES(file, offset, data, real(file, data, count, offset));
}
ssize_t pwrite64(int file, const void *data, size_t count, off64_t offset) {
    REAL(pwrite64);
    WRITES(file, offset, data, real(file, data, count, offset));
}
ssize_t sendfile(int file, int from, off_t *offset, size_t count) {
    ssize_t (*real)(int, int, off_t *, size_t) = dlsym(RTLD_NEXT, "sendfile");
    WRITES(file, position(file), NULL, real(file, from, offset, count));
}
ssize_t sendfile64(int file, int from, off64_t *offset, size_t count) {
    ssize_t (*real)(int, int, off64_t *, size_t) = dlsym(RTLD_NEXT, "sendfile64");
    WRITES(file, position(file), NULL, real(file, from, offset, count));
}
ssize_t copy_file_range(int from, off64_t *start, int file, off64_t *offset, size_t count, unsigned flags) {
    REAL(copy_file_range);
    WRITES(file, offset ? *offset : position(file), NULL, real(from, start, file, offset, count, flags));
}

static int changed(int result, int op, int file, off_t length) {
    char path[PATH_MAX];
    if (!result && log_file >= 0 && path_of(file, path)) record(op, inode_of(file), NULL, NULL, length, NULL, 0);
    return result;
}

#define LOCKED(call)                                                                                              \
    pthread_mutex_lock(&lock);                                                                                    \
    int result = call;                                                                                            \
    pthread_mutex_unlock(&lock);                                                                                  \
    return result

int ftruncate(int file, off_t length) {
    REAL(ftruncate);
    LOCKED(changed(real(file, length), TRUNCATE, file, length));
}
int ftruncate64(int file, off64_t length) {
    REAL(ftruncate64);
    LOCKED(changed(real(file, length), TRUNCATE, file, length));
}
int fsync(int file) {
    REAL(fsync);
    LOCKED(changed(real(file), SYNC, file, 0));
}
int fdatasync(int file) {
    REAL(fdatasync);
    LOCKED(changed(real(file), SYNC, file, 0));
}

static int moved(int op, int (*call)(int, const char *, int, const char *, int), int folder, const char *name,
                 int other_folder, const char *other) {
    char path[PATH_MAX], other_path[PATH_MAX];
    int is_seen = path_at(folder, name, path), is_other_seen = path_at(other_folder, other, other_path);
    pthread_mutex_lock(&lock);
    uint64_t inode = is_seen ? inode_at(path) : 0;
    int result = call(folder, name, other_folder, other, 0);
    if (!result && is_seen && is_other_seen) record(op, inode, path, other_path, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

static int call_rename(int folder, const char *name, int other_folder, const char *other, int flags) {
    return syscall(SYS_renameat2, folder, name, other_folder, other, flags);
}
static int call_link(int folder, const char *name, int other_folder, const char *other, int flags) {
    return syscall(SYS_linkat, folder, name, other_folder, other, flags);
}

int rename(const char *name, const char *other) { return moved(RENAME, call_rename, AT_FDCWD, name, AT_FDCWD, other); }
int renameat(int folder, const char *name, int other_folder, const char *other) {
    return moved(RENAME, call_rename, folder, name, other_folder, other);
}
int link(const char *name, const char *other) { return moved(LINK, call_link, AT_FDCWD, name, AT_FDCWD, other); }
int linkat(int folder, const char *name, int other_folder, const char *other, int flags) {
    (void)flags;
    return moved(LINK, call_link, folder, name, other_folder, other);
}

static int named(int op, int call, int folder, const char *name, int argument) {
    char path[PATH_MAX];
    int is_seen = path_at(folder, name, path);
    pthread_mutex_lock(&lock);
    uint64_t inode = is_seen ? inode_at(path) : 0;
    int result = syscall(call, folder, name, argument);
    if (!result && is_seen) record(op, op == MKDIR ? inode_at(path) : inode, path, NULL, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int unlink(const char *name) { return named(UNLINK, SYS_unlinkat, AT_FDCWD, name, 0); }
int unlinkat(int folder, const char *name, int flags) { return named(UNLINK, SYS_unlinkat, folder, name, flags); }
int rmdir(const char *name) { return named(UNLINK, SYS_unlinkat, AT_FDCWD, name, AT_REMOVEDIR); }
int mkdir(const char *name, mode_t mode) { return named(MKDIR, SYS_mkdirat, AT_FDCWD, name, mode); }
int mkdirat(int folder, const char *name, mode_t mode) { return named(MKDIR, SYS_mkdirat, folder, name, mode); }
