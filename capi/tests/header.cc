// The header in C++.
#include <nvmf.h>

int main()
{
    nvmf_completion done{};
    nvmf_effect effect = NVMF_EFFECT_MAY_HAVE;
    return nvmf_poll(nullptr, &done, 1) == 0 && effect == nvmf_last_effect();
}
