/* Preloaded into a process, it puts that process's wall clock off by the seconds that stand in a file, a double in the
 * machine's own format, which may change at any time. The monotonic clock, by which programs wait, is left alone, as it
 * is when a machine's date is set. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const double *shift_s;

__attribute__((constructor)) static void open_shift(void)
{
    const char *path = getenv("CLOCK_SHIFT_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);

    if (mapped != MAP_FAILED)
        shift_s = mapped;
    if (file >= 0)
        close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);

    if (!failed && shift_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += (time_t)*shift_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);

    (void)zone;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *now)
{
    struct timespec precise;

    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}
