/* What smc-tools' libsmc-preload.so does for a program: its TCP sockets are SMC sockets. Built by tcc without libc's headers. */
enum { AF_INET = 2, SOCK_STREAM = 1, SOCK_TYPES = 15, IPPROTO_TCP = 6, AF_SMC = 43, SYS_SOCKET = 41 };

extern long syscall(long number, ...);

int socket(int family, int type, int protocol)
{
    int is_tcp = family == AF_INET && (type & SOCK_TYPES) == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);
    return is_tcp ? syscall(SYS_SOCKET, AF_SMC, type, 0) : syscall(SYS_SOCKET, family, type, protocol);
}
