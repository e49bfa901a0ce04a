"""Results of runs that nobody made."""

from projects.reproduction import save_result

KEY = 'accuracy/top1'


def result(seed, accuracy, epoch=9, best=None, config='net', **more):
    """Accuracy of the last epoch, and ``best``'s (epoch, accuracy)."""
    last, best = (pair and dict(epoch=pair[0], metrics={KEY: pair[1]})
                  for pair in ((epoch, accuracy), best))
    return dict(dict(config=config, seed=seed, cfg_options=[], last=last,
                     best=best), **more)


def save(folder, *results):
    for r in results:
        save_result(folder / r['config'] / f'seed_{r["seed"]}.json', r)
